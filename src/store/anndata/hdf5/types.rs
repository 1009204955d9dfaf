//! HDF5 data types, translated.
//!
//! Numbers are taken as they lie in the file, so a type must be one that a processor knows: integers of 1, 2, 4 or 8 bytes that
//! use all their bits, IEEE 754 floats of 2, 4 or 8 bytes, either byte order. Booleans are what h5py writes: an
//! enumeration of one byte with FALSE = 0 and TRUE = 1. Everything else becomes [`ElemType::Other`] and is refused only
//! when it is asked for.

use super::heap::REFERENCE_BYTES;
use super::library::{self as lib, Id, LibraryError, class};
use crate::dtype::{DType, Stored};
use crate::store::anndata::node::{ElemType, Field, TextType};

/// Deepest nesting of compound types that is looked at.
const MAX_DEPTH: u32 = 4;
/// Most fields of a compound type.
const MAX_FIELDS: u32 = 65_536;

/// A translated type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The elements.
    pub elem: ElemType,
    /// Size of an element in the file, in bytes. The library tells the size in memory, where a variable-length string is a
    /// pointer instead of a reference into the heap, and shifts the fields of records accordingly.
    pub size: usize,
}

/// Translates the data type `datatype`.
///
/// # Errors
/// What the library says about a damaged type.
pub fn describe(datatype: &Id) -> Result<Described, LibraryError> {
    describe_at(datatype, 0)
}

fn describe_at(datatype: &Id, depth: u32) -> Result<Described, LibraryError> {
    let size = lib::size(datatype);
    let elem = match lib::type_class(datatype) {
        class::INTEGER => integer(datatype, size),
        class::FLOAT => float(datatype, size)?,
        class::STRING if lib::is_variable_string(datatype)? => {
            return Ok(Described { elem: ElemType::Text(TextType::Variable), size: REFERENCE_BYTES });
        }
        class::STRING => ElemType::Text(TextType::Fixed { len: size, space_padded: lib::is_space_padded(datatype) }),
        class::ENUM => enumeration(datatype, size)?,
        class::COMPOUND if depth < MAX_DEPTH => return record(datatype, size, depth),
        class::REFERENCE => ElemType::Other("references".to_owned()),
        other => ElemType::Other(format!("elements of HDF5 class {other}")),
    };
    Ok(Described { elem, size })
}

fn integer(datatype: &Id, size: usize) -> ElemType {
    let dtype = match (size, lib::is_signed(datatype)) {
        (1, true) => DType::I8,
        (1, false) => DType::U8,
        (2, true) => DType::I16,
        (2, false) => DType::U16,
        (4, true) => DType::I32,
        (4, false) => DType::U32,
        (8, true) => DType::I64,
        (8, false) => DType::U64,
        _ => return ElemType::Other(format!("integers of {size} bytes")),
    };
    if lib::precision(datatype) != (size * 8, 0) {
        return ElemType::Other("integers that do not use all their bits".to_owned());
    }
    number(datatype, dtype)
}

fn float(datatype: &Id, size: usize) -> Result<ElemType, LibraryError> {
    // sign, exponent, exponent bits, mantissa, mantissa bits, exponent bias (IEEE 754)
    let dtype = match (size, lib::float_fields(datatype)?) {
        (2, [15, 10, 5, 0, 10, 15]) => DType::F16,
        (4, [31, 23, 8, 0, 23, 127]) => DType::F32,
        (8, [63, 52, 11, 0, 52, 1023]) => DType::F64,
        _ => return Ok(ElemType::Other(format!("floats of {size} bytes that are not IEEE 754"))),
    };
    Ok(number(datatype, dtype))
}

fn number(datatype: &Id, dtype: DType) -> ElemType {
    match lib::is_big_endian(datatype) {
        Some(big_endian) => ElemType::Number(Stored { dtype, big_endian: big_endian && dtype.size_bytes() > 1 }),
        None => ElemType::Other("numbers of an unusual byte order".to_owned()),
    }
}

/// A boolean if the members are FALSE = 0 and TRUE = 1, else the integers it is made of.
fn enumeration(datatype: &Id, size: usize) -> Result<ElemType, LibraryError> {
    if size == 1 && lib::n_members(datatype)? == 2 {
        let mut members = Vec::new();
        for i in 0..2 {
            members.push((lib::byte_member_value(datatype, i)?, lib::member_name(datatype, i)?.to_ascii_uppercase()));
        }
        members.sort();
        if matches!(members.as_slice(), [(0, no), (1, yes)] if no == "FALSE" && yes == "TRUE") {
            return Ok(ElemType::Number(Stored::little(DType::Bool)));
        }
    }
    Ok(integer(&lib::base_type(datatype)?, size))
}

/// Fields with their places in the file: every field is shifted by what those before it take more there than in memory.
fn record(datatype: &Id, size: usize, depth: u32) -> Result<Described, LibraryError> {
    let n = lib::n_members(datatype)?;
    if n > MAX_FIELDS {
        return Ok(Described { elem: ElemType::Other(format!("records of {n} fields")), size });
    }
    let mut members = Vec::new();
    for i in 0..n {
        let (member, offset) = lib::member(datatype, i)?;
        members.push((i, member, offset));
    }
    members.sort_by_key(|(_, _, offset)| *offset);
    let mut grown = 0_usize;
    let mut fields = Vec::new();
    for (i, member, offset) in members {
        let (base, dims) = if lib::type_class(&member) == class::ARRAY {
            (Some(lib::base_type(&member)?), lib::array_extent(&member)?)
        } else {
            (None, Vec::new())
        };
        let base = base.as_ref().unwrap_or(&member);
        let Described { elem, size: stored } = describe_at(base, depth + 1)?;
        let count = dims.iter().fold(1_u64, |n, &d| n.saturating_mul(d));
        let more = stored.saturating_sub(lib::size(base)).saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
        fields.push((
            i,
            Field { name: lib::member_name(datatype, i)?, offset: offset.saturating_add(grown), elem, dims },
        ));
        grown = grown.saturating_add(more);
    }
    fields.sort_by_key(|(i, _)| *i);
    let fields = fields.into_iter().map(|(_, field)| field).collect();
    Ok(Described { elem: ElemType::Record(fields), size: size.saturating_add(grown) })
}

/// True if elements of this type hold more than their own bytes: the library must not be asked to copy them.
#[must_use]
pub fn holds_pointers(elem: &ElemType) -> bool {
    match elem {
        ElemType::Number(_) | ElemType::Text(TextType::Fixed { .. } | TextType::Utf32 { .. }) => false,
        ElemType::Text(TextType::Variable) | ElemType::Other(_) => true,
        ElemType::Record(fields) => fields.iter().any(|f| holds_pointers(&f.elem)),
    }
}
