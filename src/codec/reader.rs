//! Bounds-checked reading of the headers that codecs write.

use super::CodecError;

/// A cursor over stored bytes; running past their end is [`CodecError::Truncated`].
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    filter: &'static str,
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`, for the filter of that name.
    pub(super) const fn new(bytes: &'a [u8], filter: &'static str) -> Self {
        Self { rest: bytes, filter }
    }

    /// A cursor at `offset` of `bytes`.
    pub(super) fn at(bytes: &'a [u8], offset: usize, filter: &'static str) -> Result<Self, CodecError> {
        bytes.get(offset..).map(|rest| Self { rest, filter }).ok_or(CodecError::Truncated { filter })
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], CodecError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(CodecError::Truncated { filter: self.filter })?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(CodecError::Truncated { filter: self.filter })?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub(super) fn u8(&mut self) -> Result<u8, CodecError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A big-endian u32, as a length.
    pub(super) fn len_u32_be(&mut self) -> Result<usize, CodecError> {
        Ok(crate::num::to_usize(u64::from(u32::from_be_bytes(self.array()?))))
    }

    /// A little-endian i32.
    pub(super) fn i32_le(&mut self) -> Result<i32, CodecError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    /// A little-endian i32 that is a length or an offset: negative values are damage.
    pub(super) fn len_i32_le(&mut self) -> Result<usize, CodecError> {
        let value = self.i32_le()?;
        self.length(i64::from(value))
    }

    /// A msgpack integer that is a length: the byte `marker`, then an i32 (0xd2) or an i64 (others), big-endian.
    pub(super) fn len_msgpack(&mut self, marker: u8) -> Result<usize, CodecError> {
        if self.u8()? != marker {
            return Err(CodecError::Corrupt { filter: self.filter, reason: "unknown header" });
        }
        let value = match marker {
            0xd2 => i64::from(i32::from_be_bytes(self.array()?)),
            _ => i64::from_be_bytes(self.array()?),
        };
        self.length(value)
    }

    fn length(&self, value: i64) -> Result<usize, CodecError> {
        usize::try_from(value).map_err(|_| CodecError::Corrupt { filter: self.filter, reason: "negative length" })
    }

    /// True if nothing is left.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Everything that is left.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
