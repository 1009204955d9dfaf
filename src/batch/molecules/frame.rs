//! The plan of an extended XYZ frame: which text stands where, and how wide it is.
//!
//! Every number has a field of fixed width, so that the size of a batch follows from the number of molecules, of atoms, and of bytes of
//! text. What a molecule lacks is blank: readers then do not see it, and its width stays.
//!
//! Keys and columns are those of the dataset, as far as the format can name them; the others are told (see [`Frame::left_out`]).

use crate::dtype::DType;
use crate::store::ElementId;
use crate::store::records::{ColumnRole, RecordColumn, RowKind};

use super::{ATOMS, MoleculeSpec};

/// Width of the number of atoms.
pub const COUNT_WIDTH: usize = 10;
/// Width of a species: a symbol, or an atomic number.
pub const SPECIES_WIDTH: usize = 3;
/// What a text may take besides two bytes for each of its own: `_JSON ` and escaped quotes.
pub const TEXT_ROOM: usize = 12;

/// A key of the comment line with a value of fixed width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The field.
    pub field: String,
    /// What stands before the value, such as ` energy=`.
    pub open: String,
    /// What stands behind it: a quote, or nothing.
    pub close: &'static str,
    /// The value.
    pub value: Value,
    /// Width of all of it.
    pub width: usize,
}

/// A value of fixed width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A single number.
    Number(Source),
    /// Numbers with blanks between them, row by row.
    Numbers(Source),
    /// A 3x3 matrix, column by column, as the format has lattices and stresses.
    Columns(Source),
    /// Nested JSON arrays: for what is not a list of several numbers.
    Json(Source),
    /// Three booleans; false where only a cell is present.
    Periodic {
        /// The booleans, if the dataset has them.
        pbc: Option<Source>,
        /// The cell, if the dataset has one.
        cell: Option<Source>,
    },
    /// The global row id.
    Row,
}

/// Where values come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The column of values.
    pub column: usize,
    /// The column of marks, if the values may be missing.
    pub present: Option<usize>,
    /// Type of the values.
    pub dtype: DType,
    /// Dimensions of one entry.
    pub shape: Vec<u64>,
}

impl Source {
    /// Values of one entry.
    pub fn n(&self) -> usize {
        crate::num::to_usize(self.shape.iter().product())
    }

    /// Bytes of one entry.
    pub fn bytes(&self) -> usize {
        self.n() * self.dtype.size_bytes()
    }
}

/// A key of the comment line with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The field.
    pub field: String,
    /// What stands before it, up to the quote.
    pub open: String,
    /// Its bytes.
    pub source: Source,
    /// The element that counts them.
    pub element: ElementId,
}

/// Columns of the atom lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtomColumns {
    /// The field.
    pub field: String,
    /// Name in `Properties`.
    pub name: String,
    /// The values; one entry per atom.
    pub source: Source,
}

/// The plan of a frame.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// Fixed part of the comment line, in order, without `Properties`.
    pub infos: Vec<Info>,
    /// Texts at its end.
    pub texts: Vec<Text>,
    /// Atomic numbers.
    pub numbers: Option<Source>,
    /// Columns behind the species, positions first.
    pub atoms: Vec<AtomColumns>,
    /// Width of `Properties` with all columns.
    pub properties_width: usize,
    /// What the format cannot hold: field and reason.
    pub left_out: Vec<(String, String)>,
}

/// Width of a number with at least one blank before it.
pub fn width(dtype: DType) -> usize {
    match dtype {
        DType::F64 => 25,
        DType::I64 | DType::U64 => 21,
        DType::F32 => 16,
        DType::I32 | DType::U32 => 12,
        DType::Bool => 2,
        _ => 8,
    }
}

impl Frame {
    /// The frame of the molecules of `spec`.
    pub fn new(spec: &MoleculeSpec) -> Self {
        let mut frame = Self::default();
        let columns = spec.columns();
        let present_of =
            |name: &str| columns.iter().position(|column| column.role == ColumnRole::Present && column.name == name);
        let source = |i: usize, column: &RecordColumn| Source {
            column: i,
            present: present_of(&column.name),
            dtype: column.dtype,
            shape: column.shape.clone(),
        };
        let find = |name: &str| {
            let is_it = |(_, c): &(usize, &RecordColumn)| c.role == ColumnRole::Values && c.name == name;
            columns.iter().enumerate().find(is_it).map(|(i, column)| source(i, column))
        };
        frame.numbers = find("atomic_numbers");
        frame.add_lattice(find("cell"), find("pbc"));
        for (i, column) in columns.iter().enumerate() {
            let varies = columns.iter().any(|c| c.role == ColumnRole::Dims && c.name == column.name);
            match (column.role, column.rows) {
                (ColumnRole::Values, _) if ["atomic_numbers", "cell", "pbc"].contains(&column.name.as_str()) => {}
                (ColumnRole::Values, _) if varies => frame.leave_out(&column.name, "a tensor whose shape differs"),
                (ColumnRole::Values, RowKind::Along(ATOMS)) => frame.add_atoms(&column.name, source(i, column)),
                (ColumnRole::Values, RowKind::One) => frame.add_info(&column.name, source(i, column)),
                (ColumnRole::Text, RowKind::Along(element)) => {
                    frame.add_text(&column.name, source(i, column), element);
                }
                _ => {}
            }
        }
        frame.push("row", " row=".into(), "", Value::Row, width(DType::I64));
        frame.refuse_twins();
        frame.properties_width = frame.properties(|_| Some('R'), "species:S:1").len();
        frame
    }

    /// The value of `Properties` with the columns for which `kind` gives a letter.
    pub fn properties(&self, kind: impl Fn(&AtomColumns) -> Option<char>, species: &str) -> String {
        let mut text = format!(" Properties={species}");
        for column in &self.atoms {
            if let Some(kind) = kind(column) {
                text.push_str(&format!(":{}:{kind}:{}", column.name, column.source.n()));
            }
        }
        text
    }

    /// Bytes of a frame without atoms and texts.
    pub fn fixed_bytes(&self) -> usize {
        let infos: usize = self.infos.iter().map(|info| info.width).sum();
        let texts: usize = self.texts.iter().map(|text| text.open.len() + TEXT_ROOM + 1).sum();
        COUNT_WIDTH + 1 + infos + self.properties_width + texts + 1
    }

    /// Bytes of an atom.
    pub fn atom_bytes(&self) -> usize {
        let columns: usize = self.atoms.iter().map(|c| c.source.n() * width(c.source.dtype)).sum();
        SPECIES_WIDTH + columns + 1
    }

    fn add_lattice(&mut self, cell: Option<Source>, pbc: Option<Source>) {
        if let Some(cell) = &cell {
            self.push("cell", " Lattice=\"".into(), "\"", Value::Columns(cell.clone()), 9 * width(cell.dtype));
        }
        if cell.is_some() || pbc.is_some() {
            self.push("pbc", " pbc=\"".into(), "\"", Value::Periodic { pbc, cell }, 3 * width(DType::Bool));
        }
    }

    fn push(&mut self, field: &str, open: String, close: &'static str, value: Value, value_width: usize) {
        let width = open.len() + value_width + close.len();
        self.infos.push(Info { field: field.to_owned(), open, close, value, width });
    }

    fn add_atoms(&mut self, name: &str, source: Source) {
        let key = name.strip_prefix("atom_properties.").unwrap_or(name);
        let own = if key == "positions" { "pos" } else { key };
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "\"'\\={}[]:,".contains(c);
        if own.is_empty() || own.contains(is_odd) {
            return self.leave_out(name, "its key has characters that extxyz cannot hold");
        }
        if key != name && ["species", "pos", "Z", "positions", "numbers", "symbols", "charge"].contains(&key) {
            return self.leave_out(name, "its key means something else in extxyz");
        }
        if source.n() == 0 {
            return self.leave_out(name, "it has no values");
        }
        self.atoms.push(AtomColumns { field: name.to_owned(), name: own.to_owned(), source });
    }

    fn add_info(&mut self, name: &str, source: Source) {
        let Some(open) = self.open_key(name) else { return };
        let numbers = source.n() * width(source.dtype);
        if name == "stress" {
            return self.push(name, open + "\"", "\"", Value::Columns(source), numbers);
        }
        match source.shape[..] {
            [] => self.push(name, open, "", Value::Number(source.clone()), width(source.dtype)),
            [n] if n > 1 => self.push(name, open + "\"", "\"", Value::Numbers(source), numbers),
            _ => {
                // "_JSON ", two brackets per array and at most as many commas as values.
                let arrays: u64 = source.shape.iter().scan(1, |n, dim| Some(std::mem::replace(n, *n * dim))).sum();
                let room = 6 + 3 * crate::num::to_usize(arrays) + source.n();
                self.push(name, open + "\"", "\"", Value::Json(source), numbers + room);
            }
        }
    }

    fn add_text(&mut self, name: &str, source: Source, element: ElementId) {
        if let Some(open) = self.open_key(name) {
            self.texts.push(Text { field: name.to_owned(), open: open + "\"", source, element });
        }
    }

    /// ` key=`, if the comment line can hold the key.
    fn open_key(&mut self, name: &str) -> Option<String> {
        let key = name.strip_prefix("properties.").unwrap_or(name);
        if key.is_empty() || key.contains(char::is_control) {
            self.leave_out(name, "its key has characters that extxyz cannot hold");
            return None;
        }
        let special = ["Lattice", "Properties", "pbc", "row", "virial", "stress"];
        if key != name && special.contains(&key) {
            self.leave_out(name, "its key means something else in extxyz");
            return None;
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.+".contains(c);
        if key.chars().all(plain) {
            return Some(format!(" {key}="));
        }
        Some(format!(" \"{}\"=", escaped(key)))
    }

    /// Leaves out what has the name of something before it: `energy` and `properties.energy`, or `a0` beside the columns of `a`.
    fn refuse_twins(&mut self) {
        let mut keys = std::collections::HashSet::new();
        let mut left_out = Vec::new();
        let mut is_new = |open: &str, field: &str| {
            let is_new = keys.insert(open.trim_end_matches('"').to_owned());
            if !is_new {
                left_out.push(field.to_owned());
            }
            is_new
        };
        self.infos.retain(|info| is_new(&info.open, &info.field));
        self.texts.retain(|text| is_new(&text.open, &text.field));
        // ASE puts these into one dictionary with those of atoms.
        let results = ["energy", "free_energy", "stress", "dipole", "magmom", "polarization", "dielectric_tensor"];
        let mut names: std::collections::HashSet<String> =
            results.into_iter().filter(|key| keys.contains(&format!(" {key}="))).map(str::to_owned).collect();
        self.atoms.retain(|column| {
            let n = column.source.n();
            let expanded = (0..n).map(|i| if n == 1 { column.name.clone() } else { format!("{}{i}", column.name) });
            let all: Vec<String> = expanded.chain([column.name.clone()]).collect();
            let is_new = !all.iter().any(|name| names.contains(name));
            names.extend(all);
            if !is_new {
                left_out.push(column.field.clone());
            }
            is_new
        });
        for field in left_out {
            self.leave_out(&field, "another field has this name in extxyz");
        }
    }

    fn leave_out(&mut self, name: &str, why: &str) {
        self.left_out.push((name.to_owned(), why.to_owned()));
    }
}

/// `text` as it stands between quotes.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
