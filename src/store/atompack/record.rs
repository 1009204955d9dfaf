//! One record: its atoms, and its sections one after the other.
//!
//! ```text
//! n_atoms: u32
//! positions: n_atoms x 3 x (f32 | f64)
//! atomic_numbers: n_atoms x u8
//! n_sections: u16
//! n_sections x { kind: u8, key_len: u8, key, type: u8, payload_len: u32, payload }
//! ```
//!
//! Everything is at any address, so values are copied and never cast. Nothing here allocates, and every length is checked against what is
//! left before it is used.

use super::bytes::Reader;
use super::schema::{Payload, Scope, Tag};

/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 32;

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Fewer bytes than its atoms need.
    #[error("it is too short for its atoms")]
    ShortAtoms,
    /// A section goes beyond its end.
    #[error("a section goes beyond its end")]
    ShortSections,
    /// Bytes behind the last section.
    #[error("there are bytes behind its last section")]
    Trailing,
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Atoms.
    pub n_atoms: u32,
    /// Positions, three per atom.
    pub positions: &'a [u8],
    /// Atomic numbers, one byte per atom.
    pub numbers: &'a [u8],
    n_sections: u16,
    sections: Reader<'a>,
}

/// One section of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSection<'a> {
    /// To what it belongs; `None` for kinds of later versions.
    pub scope: Option<Scope>,
    /// Its key, UTF-8 if the schema has it.
    pub key: &'a [u8],
    /// Number of its type.
    pub tag: u8,
    /// Its payload.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record in `bytes`, whose positions have elements of `item` bytes.
    ///
    /// # Errors
    /// [`RecordError::ShortAtoms`] if it cannot hold its atoms.
    #[inline]
    pub fn parse(bytes: &'a [u8], item: usize) -> Result<Self, RecordError> {
        let mut r = Reader::new(bytes);
        let mut parse = || {
            let n_atoms = r.u32()?;
            let n = usize::try_from(n_atoms).ok()?;
            let positions = r.take(n.checked_mul(3)?.checked_mul(item)?)?;
            let numbers = r.take(n)?;
            let n_sections = r.u16()?;
            Some((n_atoms, positions, numbers, n_sections))
        };
        let (n_atoms, positions, numbers, n_sections) = parse().ok_or(RecordError::ShortAtoms)?;
        Ok(Self { n_atoms, positions, numbers, n_sections, sections: r })
    }

    /// Calls `each` with every section and its number, and checks that the last one ends with the record.
    ///
    /// # Errors
    /// [`RecordError`], or what `each` returns.
    #[inline]
    pub fn sections<E: From<RecordError>>(
        &self,
        mut each: impl FnMut(usize, RawSection<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut r = self.sections;
        for i in 0..usize::from(self.n_sections) {
            each(i, next(&mut r).ok_or(RecordError::ShortSections)?)?;
        }
        if r.rest().is_empty() { Ok(()) } else { Err(RecordError::Trailing.into()) }
    }
}

#[inline]
fn next<'a>(r: &mut Reader<'a>) -> Option<RawSection<'a>> {
    let [kind, key_len] = r.array()?;
    let key = r.take(usize::from(key_len))?;
    let tag = r.u8()?;
    let payload_len = r.u32()?;
    let payload = r.take(usize::try_from(payload_len).ok()?)?;
    Some(RawSection { scope: Scope::new(kind), key, tag, payload })
}

/// A tensor: its dimensions and its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor<'a> {
    dims: &'a [u8],
    /// The values, row-major.
    pub values: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// The tensor in a payload of values of type `tag`. `None` if its dimensions do not make up its size.
    #[must_use]
    pub fn parse(payload: &'a [u8], tag: Tag) -> Option<Self> {
        let Payload::Tensor { dtype } = tag.payload() else { return None };
        let mut r = Reader::new(payload);
        let n_dims = usize::from(r.u8()?);
        if n_dims > MAX_DIMS {
            return None;
        }
        let tensor = Self { dims: r.take(4 * n_dims)?, values: r.rest() };
        let elems = tensor.dims().try_fold(1_u64, |n, dim| n.checked_mul(u64::from(dim)))?;
        let bytes = elems.checked_mul(dtype.size_bytes() as u64)?;
        (bytes == tensor.values.len() as u64).then_some(tensor)
    }

    /// Its dimensions.
    pub fn dims(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.dims.chunks_exact(4).map(|dim| dim.try_into().map_or(0, u32::from_le_bytes))
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // small numbers
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A record of float32 positions.
    fn encode(n_atoms: u32, sections: &[(u8, &[u8], u8, &[u8])]) -> Vec<u8> {
        let mut out = n_atoms.to_le_bytes().to_vec();
        out.extend((0..n_atoms * 3).flat_map(|i| (i as f32).to_le_bytes()));
        out.extend((0..n_atoms).map(|i| i as u8 + 1));
        out.extend((sections.len() as u16).to_le_bytes());
        for (kind, key, tag, payload) in sections {
            out.extend([*kind, key.len() as u8]);
            out.extend(*key);
            out.push(*tag);
            out.extend((payload.len() as u32).to_le_bytes());
            out.extend(*payload);
        }
        out
    }

    fn sections_of<'a>(bytes: &'a [u8]) -> Result<(u32, Vec<RawSection<'a>>), RecordError> {
        let record = Record::parse(bytes, 4)?;
        let mut found = Vec::new();
        record.sections(|i, section| {
            assert_eq!(i, found.len());
            found.push(section);
            Ok::<_, RecordError>(())
        })?;
        Ok((record.n_atoms, found))
    }

    #[test]
    fn a_record_comes_back() {
        let bytes = encode(2, &[(0, b"energy", 0, &[1; 8]), (9, b"later", 77, &[])]);
        let (n_atoms, sections) = sections_of(&bytes).unwrap();
        assert_eq!(n_atoms, 2);
        let energy = RawSection { scope: Some(Scope::BuiltIn), key: b"energy", tag: 0, payload: &[1; 8] };
        assert_eq!(sections, [energy, RawSection { scope: None, key: b"later", tag: 77, payload: &[] }]);
        assert_eq!(Record::parse(&bytes, 4).unwrap().numbers, [1, 2]);
        assert_eq!(sections_of(&encode(0, &[])).unwrap(), (0, vec![]));
    }

    #[test]
    fn no_cut_record_is_taken() {
        let bytes = encode(2, &[(0, b"energy", 0, &[1; 8])]);
        for end in 0..bytes.len() {
            assert!(sections_of(&bytes[..end]).is_err(), "{end}");
        }
        assert_eq!(sections_of(&[&bytes[..], &[0]].concat()), Err(RecordError::Trailing));
        let mut huge = bytes;
        huge[..4].fill(0xff);
        assert_eq!(sections_of(&huge), Err(RecordError::ShortAtoms));
    }

    #[test]
    fn tensors_must_be_as_large_as_their_dimensions_say() {
        let tensor = |dims: &[u32], n_bytes: usize| {
            let mut out = vec![dims.len() as u8];
            out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
            out.resize(out.len() + n_bytes, 7);
            Tensor::parse(&out, Tag::new(15).unwrap()).map(|t| t.dims().collect::<Vec<_>>())
        };
        assert_eq!(tensor(&[2, 3], 48), Some(vec![2, 3]));
        assert_eq!(tensor(&[], 8), Some(vec![]));
        assert_eq!(tensor(&[0, 5], 0), Some(vec![0, 5]));
        assert_eq!(tensor(&[2, 3], 40), None);
        assert_eq!(tensor(&[u32::MAX; 3], 8), None);
        assert_eq!(tensor(&[1; 33], 8), None);
        assert_eq!(Tensor::parse(&[], Tag::new(15).unwrap()), None);
        assert_eq!(Tensor::parse(&[3, 0, 0], Tag::new(15).unwrap()), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(at in 0_usize..80, to in any::<u8>(), cut in 0_usize..80) {
            let mut bytes = encode(3, &[(0, b"energy", 0, &[1; 8]), (2, b"t", 14, &[1, 1, 0, 0, 0, 0, 0, 0, 0])]);
            let i = at % bytes.len();
            bytes[i] = to;
            bytes.truncate(bytes.len() - cut % bytes.len());
            if let Ok((_, sections)) = sections_of(&bytes) {
                for section in sections {
                    let _ = Tag::new(section.tag).and_then(|tag| Tensor::parse(section.payload, tag));
                }
            }
        }
    }
}
