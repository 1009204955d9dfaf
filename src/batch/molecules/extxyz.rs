//! Extended XYZ batches: text, one frame per molecule, for ASE and programs that read what ASE writes.
//!
//! The values of the batch are put together behind the end of the file, in the part of the buffer that is not served, and written out as text when
//! all of them are there. Numbers have as many digits as tell them apart, in a field of fixed width (see [`Frame`]).

use std::io::Write as _;

use super::frame::{
    AtomColumns, COUNT_WIDTH, Frame, Info, SPECIES_WIDTH, Source, TEXT_ROOM, Text, Value, escaped, width,
};
use super::symbols::SYMBOLS;
use super::{ATOMS, MoleculeSpec};
use crate::batch::{BatchContext, BatchShape, Encoder, Layout};
use crate::dtype::DType;
use crate::num::{align_up, to_usize};
use crate::store::records::RowKind;

/// Encoder of extended XYZ batches.
pub struct Extxyz {
    spec: MoleculeSpec,
    frame: Frame,
}

impl Extxyz {
    /// An encoder; positions and atomic numbers must be among the columns of `spec`.
    #[must_use]
    pub fn new(spec: MoleculeSpec) -> Self {
        let frame = Frame::new(&spec);
        Self { spec, frame }
    }

    /// What the format cannot hold: field and reason.
    #[must_use]
    pub fn left_out(&self) -> &[(String, String)] {
        &self.frame.left_out
    }

    /// The columns that are written out.
    fn used_columns(&self) -> Vec<usize> {
        let mut used = Vec::new();
        let mut add = |source: &Source| used.extend([Some(source.column), source.present].into_iter().flatten());
        for info in &self.frame.infos {
            match &info.value {
                Value::Number(s) | Value::Numbers(s) | Value::Columns(s) | Value::Json(s) => add(s),
                Value::Periodic { pbc, cell } => pbc.iter().chain(cell).for_each(&mut add),
                Value::Row => {}
            }
        }
        self.frame.texts.iter().for_each(|text| add(&text.source));
        self.frame.atoms.iter().for_each(|column| add(&column.source));
        self.frame.numbers.iter().for_each(&mut add);
        used
    }
}

impl Encoder for Extxyz {
    fn extension(&self) -> &'static str {
        "extxyz"
    }

    fn layout(&self, shape: BatchShape<'_>) -> Layout {
        let n_values = |element: usize| shape.n_values.get(element).copied().unwrap_or(0);
        let frames = u64::from(shape.n_rows).saturating_mul(self.frame.fixed_bytes() as u64);
        let atoms = n_values(ATOMS).saturating_mul(self.frame.atom_bytes() as u64);
        let texts: u64 = self.frame.texts.iter().map(|text| n_values(text.element).saturating_mul(2)).sum();
        let size_bytes = frames.saturating_add(atoms).saturating_add(texts);
        let mut column_offsets = vec![u64::MAX; self.spec.columns().len()];
        let mut at = size_bytes;
        for column in self.used_columns() {
            if let (Some(c), Some(offset)) = (self.spec.columns().get(column), column_offsets.get_mut(column))
                && *offset == u64::MAX
            {
                let entries = match c.rows {
                    RowKind::One => u64::from(shape.n_rows),
                    RowKind::Along(element) => n_values(element),
                };
                *offset = align_up(at, 64).unwrap_or(u64::MAX);
                at = offset.saturating_add(entries.saturating_mul(c.entry_bytes()));
            }
        }
        let part_offsets = vec![0; self.spec.schema.parts.len()];
        let ones = self.spec.marks(&column_offsets, shape);
        Layout { size_bytes, buffer_bytes: at, part_offsets, column_offsets, ones, fields: Vec::new() }
    }

    fn finish(&self, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) {
        let (file, staging) = buffer.split_at_mut(to_usize(layout.size_bytes));
        let mut out = Out { bytes: file, at: 0 };
        for slot in 0..batch.rows.len() {
            let molecule = Molecule { layout, batch, staging, slot };
            self.frame.write(&molecule, &mut out);
        }
        // As many bytes as were reckoned; should there be fewer, blanks hide nothing.
        let end = out.bytes.len();
        out.pad_to(end);
    }
}

/// The values of one molecule.
struct Molecule<'a> {
    layout: &'a Layout,
    batch: BatchContext<'a>,
    staging: &'a [u8],
    slot: usize,
}

impl<'a> Molecule<'a> {
    /// The entries of a column that belong to the molecule; `starts` is its first entry and the one behind its last.
    fn bytes(&self, source: &Source, (start, end): (usize, usize)) -> &'a [u8] {
        let first = to_usize(self.layout.column_offsets[source.column] - self.layout.size_bytes);
        let entry = source.bytes();
        &self.staging[first + start * entry..first + end * entry]
    }

    fn own(&self, source: &Source) -> &'a [u8] {
        self.bytes(source, (self.slot, self.slot + 1))
    }

    fn along(&self, source: &Source, element: usize) -> &'a [u8] {
        self.bytes(source, self.range(element))
    }

    fn range(&self, element: usize) -> (usize, usize) {
        let starts = &self.batch.row_starts[element];
        (starts[self.slot] as usize, starts[self.slot + 1] as usize)
    }

    /// True if the molecule has the field.
    fn has(&self, source: &Source) -> bool {
        source.present.is_none_or(|present| {
            let at = to_usize(self.layout.column_offsets[present] - self.layout.size_bytes) + self.slot;
            self.staging[at] != 0
        })
    }
}

/// Text as it grows.
struct Out<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    fn put(&mut self, text: &[u8]) {
        let end = self.at + text.len();
        self.bytes[self.at..end].copy_from_slice(text);
        self.at = end;
    }

    fn pad_to(&mut self, end: usize) {
        if end > self.at {
            self.bytes[self.at..end].fill(b' ');
            self.at = end;
        }
    }

    /// A number, right-aligned.
    fn number(&mut self, dtype: DType, bytes: &[u8]) {
        let (text, len) = number(dtype, bytes);
        let start = self.at + width(dtype) - len;
        self.pad_to(start);
        self.put(&text[..len]);
    }
}

/// A number as text, and its length: the shortest that reads as the same number.
fn number(dtype: DType, bytes: &[u8]) -> ([u8; 32], usize) {
    let mut text = [0; 32];
    let mut rest = &mut text[..];
    let word = |n: usize| {
        let mut word = [0; 8];
        word[..n].copy_from_slice(&bytes[..n]);
        word
    };
    let float = |value: f64| match value {
        v if v.is_nan() => Some("NaN"),
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => None,
    };
    // What is written is shorter than the text.
    let _ = match dtype {
        DType::F32 => {
            let [a, b, c, d, ..] = word(4);
            let value = f32::from_le_bytes([a, b, c, d]);
            match float(f64::from(value)) {
                Some(name) => write!(rest, "{name}"),
                None => write!(rest, "{value:e}"),
            }
        }
        DType::F64 => {
            let value = f64::from_le_bytes(word(8));
            match float(value) {
                Some(name) => write!(rest, "{name}"),
                None => write!(rest, "{value:e}"),
            }
        }
        DType::I64 => write!(rest, "{}", i64::from_le_bytes(word(8))),
        DType::I32 => {
            let [a, b, c, d, ..] = word(4);
            write!(rest, "{}", i32::from_le_bytes([a, b, c, d]))
        }
        DType::Bool => write!(rest, "{}", if bytes[0] == 0 { 'F' } else { 'T' }),
        _ => write!(rest, "{}", bytes[0]),
    };
    let len = 32 - rest.len();
    (text, len)
}

impl Frame {
    fn write(&self, molecule: &Molecule<'_>, out: &mut Out<'_>) {
        let (first, end) = molecule.range(ATOMS);
        let n_atoms = end - first;
        let count = n_atoms.to_string();
        out.pad_to(out.at + COUNT_WIDTH - count.len().min(COUNT_WIDTH));
        out.put(count.as_bytes());
        out.put(b"\n");
        let numbers = self.numbers.as_ref().map_or(&[][..], |source| molecule.along(source, ATOMS));
        // Elements without a symbol are written as numbers.
        let by_symbol = numbers.iter().all(|&z| usize::from(z) < SYMBOLS.len());
        let species = if by_symbol { "species:S:1" } else { "Z:I:1" };
        let properties = self.properties(|column| kind(column, molecule), species);
        let end = out.at + self.properties_width;
        out.put(properties.as_bytes());
        out.pad_to(end);
        for info in &self.infos {
            let end = out.at + info.width;
            info.write(molecule, out);
            out.pad_to(end);
        }
        for text in &self.texts {
            text.write(molecule, out);
        }
        out.put(b"\n");
        let columns: Vec<(&AtomColumns, Option<&[u8]>)> = self
            .atoms
            .iter()
            .map(|column| (column, molecule.has(&column.source).then(|| molecule.along(&column.source, ATOMS))))
            .collect();
        for (atom, &z) in numbers.iter().enumerate() {
            let end = out.at + SPECIES_WIDTH;
            match SYMBOLS.get(usize::from(z)).filter(|_| by_symbol) {
                Some(symbol) => out.put(symbol.as_bytes()),
                None => out.put(z.to_string().as_bytes()),
            }
            out.pad_to(end);
            for (AtomColumns { source, .. }, values) in &columns {
                let (n, item) = (source.n(), source.dtype.size_bytes());
                match values {
                    None => out.pad_to(out.at + n * width(source.dtype)),
                    Some(values) => {
                        let entry = &values[atom * n * item..(atom + 1) * n * item];
                        entry.chunks_exact(item).for_each(|value| out.number(source.dtype, value));
                    }
                }
            }
            out.put(b"\n");
        }
    }
}

/// The letter of a column in `Properties`; `None` if the molecule lacks it. Integers that ASE could not hold are real.
fn kind(column: &AtomColumns, molecule: &Molecule<'_>) -> Option<char> {
    let source = &column.source;
    if !molecule.has(source) {
        return None;
    }
    let fits = |value: &[u8]| value.try_into().is_ok_and(|v| i32::try_from(i64::from_le_bytes(v)).is_ok());
    Some(match source.dtype {
        DType::F32 | DType::F64 => 'R',
        DType::I64 if !molecule.along(source, ATOMS).chunks_exact(8).all(fits) => 'R',
        _ => 'I',
    })
}

impl Info {
    /// Writes nothing if the molecule lacks the value.
    fn write(&self, molecule: &Molecule<'_>, out: &mut Out<'_>) {
        let is_present = match &self.value {
            Value::Number(s) | Value::Numbers(s) | Value::Columns(s) | Value::Json(s) => molecule.has(s),
            Value::Periodic { pbc, cell } => pbc.iter().chain(cell).any(|source| molecule.has(source)),
            Value::Row => true,
        };
        if !is_present {
            return;
        }
        out.put(self.open.as_bytes());
        match &self.value {
            Value::Row => out.put(molecule.batch.rows[molecule.slot].to_string().as_bytes()),
            Value::Number(source) => {
                let (text, len) = number(source.dtype, molecule.own(source));
                out.put(&text[..len]);
            }
            Value::Numbers(source) => {
                let item = source.dtype.size_bytes();
                molecule.own(source).chunks_exact(item).for_each(|value| out.number(source.dtype, value));
            }
            Value::Columns(source) => {
                let (item, values) = (source.dtype.size_bytes(), molecule.own(source));
                // Of `cell`, rows are the vectors, and the format lists them one by one; a stress is listed by columns.
                let by_column = self.open.trim_start() == "stress=\"";
                for i in 0..9 {
                    let at = if by_column { i % 3 * 3 + i / 3 } else { i };
                    out.number(source.dtype, &values[at * item..(at + 1) * item]);
                }
            }
            Value::Json(source) => {
                out.put(b"_JSON ");
                json(source, &source.shape, molecule.own(source), out);
            }
            Value::Periodic { pbc, .. } => match pbc.as_ref().filter(|source| molecule.has(source)) {
                Some(source) => molecule.own(source).iter().for_each(|value| out.number(DType::Bool, &[*value])),
                None => (0..3).for_each(|_| out.number(DType::Bool, &[0])),
            },
        }
        out.put(self.close.as_bytes());
    }
}

/// Nested arrays of `values`, in dimensions `shape`.
fn json(source: &Source, shape: &[u64], values: &[u8], out: &mut Out<'_>) {
    let Some((&n, inner)) = shape.split_first() else {
        out.number(source.dtype, values);
        return;
    };
    out.put(b"[");
    let step = values.len() / to_usize(n).max(1);
    for i in 0..to_usize(n) {
        if i > 0 {
            out.put(b",");
        }
        json(source, inner, &values[i * step..(i + 1) * step], out);
    }
    out.put(b"]");
}

impl Text {
    fn write(&self, molecule: &Molecule<'_>, out: &mut Out<'_>) {
        let bytes = molecule.along(&self.source, self.element);
        let room = 2 * bytes.len() + TEXT_ROOM;
        let end = out.at + self.open.len() + room + 1;
        if molecule.has(&self.source) {
            out.put(self.open.as_bytes());
            out.put(quoted(&String::from_utf8_lossy(bytes), room).as_bytes());
            out.put(b"\"");
        }
        out.pad_to(end);
    }
}

/// A text as it stands between quotes, in at most `room` bytes. Readers take `12` for a number and `T` for true, so such texts are JSON.
fn quoted(text: &str, room: usize) -> String {
    // A word that no reader takes for anything but text.
    let is_text = |word: &str| {
        let letters = "bcdghjklmopqrsuvwxzBCDGHJKLMOPQRSUVWXZ";
        let booleans = ["true", "false", "True", "False", "TRUE", "FALSE"];
        word.chars().any(|c| letters.contains(c)) && !booleans.contains(&word)
    };
    let is_plain =
        text.split([' ', ',']).any(is_text) && !text.contains(char::is_control) && !text.starts_with("_JSON");
    let plain = escaped(text);
    if is_plain && plain.len() <= room {
        return plain;
    }
    let json = escaped(&format!("_JSON {}", serde_json::Value::from(text)));
    if json.len() <= room {
        return json;
    }
    // Too many control characters: blanks take their place.
    let blank: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let plain = escaped(&blank);
    if plain.len() <= room { plain } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(dtype: DType, bytes: &[u8]) -> String {
        let (text, len) = number(dtype, bytes);
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    #[test]
    fn the_longest_numbers_fit_their_fields() {
        for bits in [0x8000_0001_u32, 0xff7f_ffff, 0x8080_0001, 0xb3d6_bf95, 0x7fc0_0000, 0xff80_0000] {
            let text = text_of(DType::F32, &bits.to_le_bytes());
            assert!(text.len() < width(DType::F32), "{text}");
            let value = f32::from_bits(bits);
            assert!(value.is_nan() || text.parse::<f32>() == Ok(value), "{text}");
        }
        for value in [-f64::MIN_POSITIVE, f64::MIN, -1.234_567_890_123_456_7e-100, f64::NEG_INFINITY, -5e-324] {
            let text = text_of(DType::F64, &value.to_le_bytes());
            assert!(text.len() < width(DType::F64) && text.parse::<f64>() == Ok(value), "{text}");
        }
        assert!(text_of(DType::I64, &i64::MIN.to_le_bytes()).len() < width(DType::I64));
        assert!(text_of(DType::I32, &i32::MIN.to_le_bytes()).len() < width(DType::I32));
    }

    #[test]
    fn texts_stay_texts() {
        let quoted = |text: &str| quoted(text, 2 * text.len() + TEXT_ROOM);
        assert_eq!(quoted("CC(=O)\"x\\"), "CC(=O)\\\"x\\\\");
        for text in ["12", "nan", "T", "T F", "", "1,2", "_JSON 1"] {
            assert!(quoted(text).starts_with("_JSON \\\""), "{text}");
        }
        assert_eq!(quoted("a\nb"), "_JSON \\\"a\\\\nb\\\"");
        assert_eq!(quoted(&"\u{1}".repeat(40)), " ".repeat(40));
    }
}
