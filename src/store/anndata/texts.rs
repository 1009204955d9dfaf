//! Text elements of fixed size: bytes filled up with NULs or spaces, or code points of four bytes each (numpy's `U`).

use super::node::{MAX_TEXT_BYTES, Node, TextType};
use crate::num::to_u64;
use crate::store::column::Strings;
use crate::store::error::OpenError;

/// Text elements out of `bytes` as stored, one every `stride` bytes from `offset` on, charged to the source of `node`. `Err(reason)` inside
/// if a text is not valid, too long, or not in its place.
///
/// # Errors
/// [`OpenError`] if they take more memory than the source justifies.
pub fn in_place(
    node: &dyn Node,
    bytes: &[u8],
    stride: usize,
    offset: usize,
    text: TextType,
) -> Result<Result<Strings, String>, OpenError> {
    let size = match text {
        TextType::Fixed { len, .. } => len,
        TextType::Utf32 { len, .. } => len.saturating_mul(4),
        TextType::Variable => return Ok(Err("has text of variable length where there is none".to_owned())),
    };
    if size > MAX_TEXT_BYTES {
        return Ok(Err(format!("texts of {size} bytes")));
    }
    let n = bytes.len() / stride.max(1);
    node.source().charge(node.path(), to_u64(n).saturating_mul(to_u64(size) + 8))?;
    let mut strings = Strings::with_capacity(n);
    let mut wide = String::new();
    for (i, element) in bytes.chunks_exact(stride.max(1)).enumerate() {
        let element = element.get(offset..offset.saturating_add(size)).unwrap_or_default();
        let found = match text {
            TextType::Utf32 { big_endian, .. } => {
                wide.clear();
                decode_utf32(element, big_endian, &mut wide).map(|()| wide.as_str())
            }
            _ => {
                std::str::from_utf8(unpadded(element, matches!(text, TextType::Fixed { space_padded: true, .. }))).ok()
            }
        };
        match found {
            Some(found) => strings.push(found),
            None => return Ok(Err(format!("text {i} is not Unicode"))),
        }
    }
    Ok(Ok(strings))
}

/// The text before its filling: up to the first NUL, and without trailing spaces where those are the filling.
#[must_use]
pub fn unpadded(bytes: &[u8], space_padded: bool) -> &[u8] {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let text = bytes.get(..end).unwrap_or_default();
    if space_padded { text.trim_ascii_end() } else { text }
}

/// Appends the code points before the filling; `None` if one is none.
fn decode_utf32(bytes: &[u8], big_endian: bool, out: &mut String) -> Option<()> {
    for point in bytes.as_chunks::<4>().0 {
        let value = if big_endian { u32::from_be_bytes(*point) } else { u32::from_le_bytes(*point) };
        if value == 0 {
            break;
        }
        out.push(char::from_u32(value)?);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fillings_are_no_text() {
        assert_eq!(unpadded(b"ab\0\0", false), b"ab");
        assert_eq!(unpadded(b"ab  ", false), b"ab  ");
        assert_eq!(unpadded(b"a b ", true), b"a b");
        assert_eq!(unpadded(b"", true), b"");
    }

    #[test]
    fn code_points() {
        let encode = |text: &str, big: bool| -> Vec<u8> {
            text.chars()
                .flat_map(|c| if big { u32::from(c).to_be_bytes() } else { u32::from(c).to_le_bytes() })
                .collect()
        };
        for big_endian in [false, true] {
            let mut out = String::new();
            assert_eq!(decode_utf32(&encode("aé🦀\0x", big_endian), big_endian, &mut out), Some(()));
            assert_eq!(out, "aé🦀");
            assert_eq!(decode_utf32(&[0xff; 4], big_endian, &mut out), None);
        }
    }
}
