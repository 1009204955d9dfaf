//! `shufflefs inspect` for molecules: what is in the files, from their headers, schemas and indexes alone.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::describe::{field_json, files_json};
use super::{Molecules, facts, progress};
use crate::cli::text::{bytes, count, plural};
use crate::store::atompack::{AtompackStore, Serve};
use crate::store::cache::CacheConfig;

/// Atoms per molecule, over all of them.
struct Atoms {
    min: u32,
    median: u32,
    max: u32,
}

/// Prints the content of each source.
///
/// # Errors
/// What cannot be opened.
pub fn run(sources: &[PathBuf], as_json: bool) -> anyhow::Result<()> {
    let (mut list, mut text) = (Vec::new(), String::new());
    for source in sources {
        let one = std::slice::from_ref(source);
        let store = AtompackStore::open(one, &Serve::Records, &CacheConfig::off(), &mut progress::Bar::default())?;
        let (m, atoms) = (facts(&store), atoms(&store));
        if as_json {
            list.push(json!({"source": source.display().to_string(), "content": content(&store, &m, &atoms)}));
        } else {
            let _ = write!(text, "{}\n{}", source.display(), describe(&store, &m, &atoms));
        }
    }
    if as_json {
        text = serde_json::to_string_pretty(&list)? + "\n";
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn n_rows(m: &Molecules) -> u64 {
    m.files.iter().map(|file| file.n_rows).sum()
}

fn atoms(store: &AtompackStore) -> Atoms {
    // How many molecules have how many atoms; there are few different numbers, however many molecules.
    let mut counts = std::collections::BTreeMap::new();
    let mut n = 0_u64;
    for file in store.files() {
        for row in 0..file.index.atoms.n_rows() {
            *counts.entry(file.index.atoms.len(row)).or_insert(0_u64) += 1;
            n += 1;
        }
    }
    let mut below = 0;
    let median = counts.iter().find(|(_, count)| {
        below += **count;
        2 * below >= n
    });
    let of = |entry: Option<(&u32, &u64)>| entry.map_or(0, |(&atoms, _)| atoms);
    Atoms { min: of(counts.first_key_value()), median: of(median), max: of(counts.last_key_value()) }
}

fn content(store: &AtompackStore, m: &Molecules, atoms: &Atoms) -> Value {
    let n = n_rows(m).max(1) as f64;
    json!({
        "container": "atompack",
        "n_molecules": n_rows(m),
        "n_atoms": m.n_atoms,
        "atoms_per_molecule": {"min": atoms.min, "median": atoms.median, "mean": m.n_atoms as f64 / n, "max": atoms.max},
        "stored_bytes": m.stored_bytes,
        "stored_bytes_per_molecule": m.stored_bytes as f64 / n,
        "decoded_bytes_per_molecule": m.decoded_bytes as f64 / n,
        "fields": m.fields.iter().map(field_json).collect::<Vec<_>>(),
        "files": files_json(m),
        "warnings": store.files().iter().flat_map(|file| &file.warnings).collect::<Vec<_>>(),
    })
}

fn describe(store: &AtompackStore, m: &Molecules, atoms: &Atoms) -> String {
    let n = n_rows(m);
    let per = |total: u64| total as f64 / n.max(1) as f64;
    let n_files = m.files.len() as u64;
    let codecs: std::collections::BTreeSet<&str> = m.files.iter().map(|file| file.codec).collect();
    let mut text = format!(
        "  Atompack: {} molecules in {} file{}, {}\n",
        count(n),
        count(n_files),
        plural(n_files),
        codecs.into_iter().collect::<Vec<_>>().join(" and ")
    );
    let _ = writeln!(
        text,
        "  atoms: {} in all; per molecule {} to {}, median {}, mean {:.1}",
        count(m.n_atoms),
        atoms.min,
        atoms.max,
        atoms.median,
        per(m.n_atoms)
    );
    let _ = writeln!(
        text,
        "  records: {} on disk; {:.0} bytes per molecule, {:.0} decoded",
        bytes(m.stored_bytes),
        per(m.stored_bytes),
        per(m.decoded_bytes)
    );
    for field in &m.fields {
        let per = if field.per_atom { "atom" } else { "molecule" };
        let optional = if field.optional { ", may be missing" } else { "" };
        let _ = writeln!(text, "  {}: {} per {per}{optional}", field.name, field.kind);
    }
    for warning in store.files().iter().flat_map(|file| &file.warnings) {
        let _ = writeln!(text, "  warning: {warning}");
    }
    text
}
