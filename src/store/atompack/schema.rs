//! The schema of an Atompack file: which sections its records may have, and of what type each is.
//!
//! The schema is the union over all records: any section may be missing in any record, but its type and its size are the same
//! wherever it is present. Only texts and tensors differ in size. Files of the first releases have no schema; then the same list
//! is collected from the records.

use super::bytes::Reader;
use crate::dtype::DType;

/// Longest schema that is read: some tens of bytes for each of some hundred keys in practice.
pub const MAX_SCHEMA_BYTES: u64 = 64 << 20;
/// The only version of the schema.
const VERSION: u32 = 1;
/// Position type of a file that never held an atom.
const POSITIONS_UNSET: u8 = 255;

/// Type of a section's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u8);

/// What a payload is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Elements of `shape` (one entry); as many entries as the section has.
    Elements {
        /// Their type.
        dtype: DType,
        /// Dimensions of one entry.
        shape: &'static [u64],
        /// True if a molecule may have several entries: an array.
        is_array: bool,
    },
    /// UTF-8.
    Text,
    /// Nothing: the key is all there is.
    Null,
    /// `ndim: u8, dims: u32 x ndim, values`.
    Tensor {
        /// Type of the values.
        dtype: DType,
    },
}

impl Tag {
    /// Text.
    pub const TEXT: Self = Self(2);

    /// The tag of this number, if there is one.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number <= 17).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// What a payload of this type is made of.
    #[must_use]
    pub fn payload(self) -> Payload {
        let one = |dtype| Payload::Elements { dtype, shape: &[], is_array: false };
        let array = |dtype| Payload::Elements { dtype, shape: &[], is_array: true };
        let vectors = |dtype| Payload::Elements { dtype, shape: &[3], is_array: true };
        let matrix = |dtype| Payload::Elements { dtype, shape: &[3, 3], is_array: false };
        match self.0 {
            0 => one(DType::F64),
            1 => one(DType::I64),
            2 => Payload::Text,
            3 => array(DType::F64),
            4 => vectors(DType::F32),
            5 => array(DType::I64),
            6 => array(DType::F32),
            7 => vectors(DType::F64),
            8 => array(DType::I32),
            9 => Payload::Elements { dtype: DType::Bool, shape: &[3], is_array: false },
            10 => matrix(DType::F64),
            11 => one(DType::F32),
            12 => matrix(DType::F32),
            14 => Payload::Tensor { dtype: DType::F32 },
            15 => Payload::Tensor { dtype: DType::F64 },
            16 => Payload::Tensor { dtype: DType::I32 },
            17 => Payload::Tensor { dtype: DType::I64 },
            _ => Payload::Null,
        }
    }

    /// Bytes of one entry (or of one value of a tensor); 0 for text and null.
    #[must_use]
    pub fn elem_bytes(self) -> u32 {
        // At most 72.
        #[allow(clippy::cast_possible_truncation)]
        match self.payload() {
            Payload::Elements { dtype, shape, .. } => shape.iter().product::<u64>() as u32 * dtype.size_bytes() as u32,
            Payload::Tensor { dtype } => dtype.size_bytes() as u32,
            Payload::Text | Payload::Null => 0,
        }
    }

    /// True if payloads of one section may differ in size.
    #[must_use]
    pub fn is_varying(self) -> bool {
        matches!(self.payload(), Payload::Text | Payload::Tensor { .. })
    }

    /// The type in words, such as `float64`, `float32 x 3`, `text`.
    #[must_use]
    pub fn describe(self) -> String {
        match self.payload() {
            Payload::Elements { dtype, shape, .. } => {
                let dims: String = shape.iter().map(|n| format!(" x {n}")).collect();
                format!("{dtype}{dims}")
            }
            Payload::Text => "text".to_owned(),
            Payload::Null => "null".to_owned(),
            Payload::Tensor { dtype } => format!("tensor of {dtype}"),
        }
    }
}

/// To what a section belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A field that Atompack knows by its name.
    BuiltIn,
    /// A property of each atom.
    Atom,
    /// A property of the molecule.
    Molecule,
}

impl Scope {
    /// The scope of a `kind` byte; `None` for kinds of later versions, whose sections are skipped.
    #[must_use]
    pub fn new(kind: u8) -> Option<Self> {
        match kind {
            0 => Some(Self::BuiltIn),
            1 => Some(Self::Atom),
            2 => Some(Self::Molecule),
            _ => None,
        }
    }

    fn kind(self) -> u8 {
        match self {
            Self::BuiltIn => 0,
            Self::Atom => 1,
            Self::Molecule => 2,
        }
    }
}

/// The built-in fields in the order in which records have them, their types, and whether each atom has one.
const BUILT_INS: [(&str, [u8; 2], bool); 8] = [
    ("charges", [3, 6], true),
    ("cell", [10, 12], false),
    ("energy", [0, 11], false),
    ("forces", [4, 7], true),
    ("name", [2, 2], false),
    ("pbc", [9, 9], false),
    ("stress", [10, 12], false),
    ("velocities", [4, 7], true),
];

/// One section of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// To what it belongs.
    pub scope: Scope,
    /// Its key.
    pub key: String,
    /// Type of its payload.
    pub tag: Tag,
    /// True if it has one entry per atom.
    pub per_atom: bool,
    /// Bytes of its payload in a molecule, if it is neither per atom nor varying nor null; else 0.
    pub molecule_bytes: u32,
}

impl Section {
    /// A section from what a record or a schema says of it. `payload_bytes` is the size of the payload of a section that is neither per
    /// atom nor varying.
    ///
    /// # Errors
    /// What is wrong with the type or the size.
    pub fn new(scope: Scope, key: &str, tag: Tag, payload_bytes: u32) -> Result<Self, String> {
        let built_in = BUILT_INS.iter().find(|(name, ..)| scope == Scope::BuiltIn && *name == key);
        if let Some((_, tags, _)) = built_in
            && !tags.contains(&tag.number())
        {
            return Err(format!("is {}, which is not its type", tag.describe()));
        }
        let per_atom = match scope {
            Scope::BuiltIn => built_in.is_some_and(|&(.., per_atom)| per_atom),
            Scope::Atom => !tag.is_varying() && !matches!(tag.payload(), Payload::Null),
            Scope::Molecule => false,
        };
        if scope == Scope::Atom
            && !matches!(tag.payload(), Payload::Elements { is_array: true, .. } | Payload::Tensor { .. })
        {
            return Err(format!("is {}, which no property of atoms is", tag.describe()));
        }
        let molecule_bytes = match tag.payload() {
            Payload::Elements { .. } if per_atom => 0,
            Payload::Elements { is_array: false, .. } => tag.elem_bytes(),
            Payload::Elements { is_array: true, .. } => payload_bytes,
            Payload::Text | Payload::Null | Payload::Tensor { .. } => 0,
        };
        if molecule_bytes > 0 && !molecule_bytes.is_multiple_of(tag.elem_bytes()) {
            return Err(format!("has {molecule_bytes} bytes, which are no whole {}", tag.describe()));
        }
        Ok(Self { scope, key: key.to_owned(), tag, per_atom, molecule_bytes })
    }

    /// True for a built-in field of a later version: it is skipped.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.scope == Scope::BuiltIn && !BUILT_INS.iter().any(|(name, ..)| *name == self.key)
    }

    /// Name of the field in a batch: the key of a built-in, `properties.KEY` or `atom_properties.KEY`.
    #[must_use]
    pub fn field_name(&self) -> String {
        match self.scope {
            Scope::BuiltIn => self.key.clone(),
            Scope::Atom => format!("atom_properties.{}", self.key),
            Scope::Molecule => format!("properties.{}", self.key),
        }
    }

    /// True if its first dimension is that of the atoms: tensors of atoms, too, whose size is not fixed.
    #[must_use]
    pub fn belongs_to_atoms(&self) -> bool {
        self.per_atom || self.scope == Scope::Atom
    }

    /// Where it stands in records: built-ins in their order, then properties of atoms, then of molecules, each by key.
    #[must_use]
    pub fn record_order(&self) -> (u8, usize, &[u8]) {
        let place = BUILT_INS.iter().position(|(name, ..)| *name == self.key).unwrap_or(BUILT_INS.len());
        (self.scope.kind(), if self.scope == Scope::BuiltIn { place } else { 0 }, self.key.as_bytes())
    }

    /// Dimensions of the whole payload in a molecule or, per atom, of one atom's part.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        let Payload::Elements { shape, is_array, .. } = self.tag.payload() else { return Vec::new() };
        let entries = u64::from(self.molecule_bytes / self.tag.elem_bytes().max(1));
        let entries = (is_array && !self.per_atom).then_some(entries);
        entries.into_iter().chain(shape.iter().copied()).collect()
    }
}

/// The schema of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSchema {
    /// Type of the positions: f32 or f64; `None` if the schema leaves it open.
    pub positions: Option<DType>,
    /// The sections, each (scope, key) once.
    pub sections: Vec<Section>,
}

impl FileSchema {
    /// Reads a schema, to its last byte.
    ///
    /// # Errors
    /// What is wrong, naming the key.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let ended = || "ends too early".to_owned();
        let mut r = Reader::new(bytes);
        let version = r.u32().ok_or_else(ended)?;
        if version != VERSION {
            return Err(format!("has version {version}, not {VERSION}"));
        }
        let positions = match r.u8().ok_or_else(ended)? {
            4 => Some(DType::F32),
            7 => Some(DType::F64),
            POSITIONS_UNSET => None,
            other => return Err(format!("gives positions the type {other}")),
        };
        let count = r.u32().ok_or_else(ended)?;
        let mut sections: Vec<Section> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..count {
            if let Some(section) = parse_section(&mut r, &ended)? {
                if !seen.insert((section.scope, section.key.clone())) {
                    return Err(format!("names {:?} twice", section.field_name()));
                }
                sections.push(section);
            }
        }
        if !r.rest().is_empty() {
            return Err(format!("has {} bytes behind its end", r.rest().len()));
        }
        sections.sort_by(|a, b| a.record_order().cmp(&b.record_order()));
        Ok(Self { positions, sections })
    }

    /// The bytes of the schema, as upstream writes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut sections: Vec<&Section> = self.sections.iter().collect();
        sections.sort_by_key(|s| (s.scope, s.key.as_bytes()));
        let mut out = Vec::new();
        out.extend(VERSION.to_le_bytes());
        out.push(match self.positions {
            None => POSITIONS_UNSET,
            Some(DType::F64) => 7,
            Some(_) => 4,
        });
        out.extend(u32::try_from(sections.len()).unwrap_or(u32::MAX).to_le_bytes());
        for section in sections {
            let elem_bytes = section.tag.elem_bytes();
            out.extend([section.scope.kind(), section.tag.number(), u8::from(section.belongs_to_atoms())]);
            out.extend(u16::try_from(section.key.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend(elem_bytes.to_le_bytes());
            out.extend(if section.per_atom { elem_bytes } else { section.molecule_bytes }.to_le_bytes());
            out.extend(section.key.as_bytes());
        }
        out
    }
}

/// One section; `None` for one of a later version, which is skipped.
fn parse_section(r: &mut Reader<'_>, ended: &impl Fn() -> String) -> Result<Option<Section>, String> {
    let [kind, tag, per_atom] = r.array().ok_or_else(ended)?;
    let key_len = r.u16().ok_or_else(ended)?;
    let (elem_bytes, slot_bytes) = (r.u32().ok_or_else(ended)?, r.u32().ok_or_else(ended)?);
    let key = r.take(usize::from(key_len)).ok_or_else(ended)?;
    let key = std::str::from_utf8(key).map_err(|_| "has a key that is not UTF-8".to_owned())?;
    let Some(scope) = Scope::new(kind) else { return Ok(None) };
    let tag = Tag::new(tag).ok_or_else(|| format!("gives {key:?} the type {tag}"))?;
    let section = Section::new(scope, key, tag, slot_bytes).map_err(|why| format!("{key:?} {why}"))?;
    if section.is_unknown() {
        return Ok(None);
    }
    let slot = if section.per_atom { tag.elem_bytes() } else { section.molecule_bytes };
    let found = (per_atom, elem_bytes, slot_bytes);
    if found != (u8::from(section.belongs_to_atoms()), tag.elem_bytes(), slot) {
        return Err(format!(
            "{key:?}: {} with per atom {per_atom}, {elem_bytes} and {slot_bytes} bytes",
            tag.describe()
        ));
    }
    Ok(Some(section))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(scope: Scope, key: &str, tag: u8, bytes: u32) -> Section {
        Section::new(scope, key, Tag::new(tag).unwrap(), bytes).unwrap()
    }

    fn example() -> FileSchema {
        let sections = vec![
            section(Scope::BuiltIn, "charges", 3, 0),
            section(Scope::BuiltIn, "cell", 10, 72),
            section(Scope::BuiltIn, "energy", 0, 8),
            section(Scope::Atom, "dip", 4, 0),
            section(Scope::Atom, "tdesc", 15, 0),
            section(Scope::Molecule, "none", 13, 0),
            section(Scope::Molecule, "spectrum", 3, 32),
        ];
        FileSchema { positions: Some(DType::F32), sections }
    }

    #[test]
    fn a_schema_comes_back() {
        let schema = example();
        assert_eq!(FileSchema::parse(&schema.encode()), Ok(schema.clone()));
        let shapes: Vec<Vec<u64>> = schema.sections.iter().map(Section::shape).collect();
        assert_eq!(shapes, [vec![], vec![3, 3], vec![], vec![3], vec![], vec![], vec![4]]);
        assert_eq!(schema.sections[3].field_name(), "atom_properties.dip");
    }

    #[test]
    fn wrong_schemas_are_refused() {
        let bytes = example().encode();
        for end in 0..bytes.len() {
            assert!(FileSchema::parse(&bytes[..end]).is_err(), "{end}");
        }
        let change = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            FileSchema::parse(&bytes).unwrap_err()
        };
        // The first section is `cell` behind 9 bytes: kind, tag, per atom, key length, element bytes, slot bytes.
        assert_eq!(change(0, 2), "has version 2, not 1");
        assert_eq!(change(4, 5), "gives positions the type 5");
        assert_eq!(change(10, 18), "gives \"cell\" the type 18");
        assert_eq!(change(10, 3), "\"cell\" is float64, which is not its type");
        assert!(change(11, 1).starts_with("\"cell\": float64 x 3 x 3 with per atom 1"));
        assert!(change(14, 8).contains("8 and 72 bytes"));
        assert_eq!(FileSchema::parse(&[&bytes[..], &[0]].concat()), Err("has 1 bytes behind its end".to_owned()));
        let mut twice = example();
        twice.sections.push(twice.sections[2].clone());
        assert_eq!(FileSchema::parse(&twice.encode()), Err("names \"energy\" twice".to_owned()));
        assert!(Section::new(Scope::Molecule, "a", Tag::new(3).unwrap(), 12).is_err());
        assert!(Section::new(Scope::Atom, "a", Tag::new(0).unwrap(), 8).is_err());
    }

    #[test]
    fn sections_of_later_versions_are_skipped() {
        let mut schema = example();
        schema.sections.push(section(Scope::BuiltIn, "zzz", 0, 8));
        assert_eq!(FileSchema::parse(&schema.encode()), Ok(example()));
    }
}
