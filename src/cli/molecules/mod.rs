//! Opening molecules: what a dataset of `.atp` files makes of the options, and what it says of itself.

pub mod describe;
pub mod inspect;
mod progress;
pub mod readme;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;

use super::collect::cache_config;
use super::dataset::Content;
use super::options::{Format, Options, UsageError};
use crate::batch::molecules::atp::{Atp, Database};
use crate::batch::molecules::extxyz::Extxyz;
use crate::batch::molecules::flat::Flat;
use crate::batch::{BatchSpec, Encoder, MoleculeSpec, npz};
use crate::dtype::DType;
use crate::store::anndata::{NamesChoice, ObsChoice};
use crate::store::atompack::fields::{NUMBERS, POSITIONS};
use crate::store::atompack::store::is_null;
use crate::store::atompack::{AtompackStore, FieldsChoice, Serve, is_atompack};
use crate::store::fingerprint::fingerprint;
use crate::store::{Store, Strings};
use crate::window::sizes::Sizes;

/// Facts about a dataset of molecules.
#[derive(Debug, Clone)]
pub struct Molecules {
    /// Its files, in the order of their rows.
    pub files: Vec<FileFacts>,
    /// Its fields, in the order of records, positions and atomic numbers first.
    pub fields: Vec<FieldFacts>,
    /// Atoms of all molecules.
    pub n_atoms: u64,
    /// Atoms of the largest molecule.
    pub max_atoms: u32,
    /// Bytes of all records in the files.
    pub stored_bytes: u64,
    /// The same, decoded.
    pub decoded_bytes: u64,
}

/// Facts about one file.
#[derive(Debug, Clone)]
pub struct FileFacts {
    /// Its path.
    pub path: PathBuf,
    /// Molecules.
    pub n_rows: u64,
    /// How records are compressed.
    pub codec: &'static str,
    /// 2 or 3.
    pub record_format: u32,
    /// Number of the newest commit.
    pub generation: u64,
}

/// Facts about one field.
#[derive(Debug, Clone)]
pub struct FieldFacts {
    /// Name in a batch.
    pub name: String,
    /// Type in words, such as `float32 x 3`.
    pub kind: String,
    /// True if each atom has one.
    pub per_atom: bool,
    /// True if a molecule may lack it.
    pub optional: bool,
    /// True if it has no value: the key is all there is.
    pub is_null: bool,
    /// True if batches hold it.
    pub served: bool,
    /// Type and dimensions of the values of one molecule or atom, where all have the same.
    pub shape: Option<(DType, Vec<u64>)>,
}

/// True if the sources hold molecules.
///
/// # Errors
/// If some do and some do not.
pub fn are_given(sources: &[PathBuf]) -> anyhow::Result<bool> {
    let Some((first, others)) = sources.split_first() else { return Ok(false) };
    let molecules = is_atompack(first);
    if let Some(other) = others.iter().find(|other| is_atompack(other) != molecules) {
        let (a, b) = if molecules { ("molecules", "does not") } else { ("cells", "holds molecules") };
        bail!("{}: {b}, while {} holds {a}; mount them one by one", other.display(), first.display());
    }
    Ok(molecules)
}

/// Opens sources of molecules.
///
/// # Errors
/// One line that names the file, the field, the reason and the way out.
pub(super) fn open(sources: &[PathBuf], options: &Options) -> anyhow::Result<Content> {
    refuse_cell_options(options)?;
    let serve = serve(options)?;
    let store = AtompackStore::open(sources, &serve, &cache_config(options), &mut progress::Bar::default())?;
    let molecules = facts(&store);
    let mut warnings: Vec<String> = store.files().iter().flat_map(|file| file.warnings.iter().cloned()).collect();
    warnings.dedup();
    let schema = Arc::new(store.schema().clone());
    let names = Strings::default();
    let fingerprint = fingerprint(&store, &names, false);
    let spec = MoleculeSpec { schema: Arc::clone(&schema), seed: options.seed, fingerprint: fingerprint.clone() };
    let mut left_out: Vec<(String, String)> = Vec::new();
    let encoder: Arc<dyn Encoder> = match options.format {
        Format::Safetensors => Arc::new(Flat::safetensors(spec)?),
        Format::Npz => Arc::new(npz_encoder(&store, spec, options)?),
        Format::Atp => Arc::new(Atp::new(spec, database(&store))),
        Format::Extxyz => {
            let encoder = Extxyz::new(spec);
            left_out.extend_from_slice(encoder.left_out());
            Arc::new(encoder)
        }
    };
    let spec = BatchSpec { schema, dense: false, seed: options.seed, fingerprint };
    Ok(Content {
        store: Arc::new(store),
        spec,
        encoder,
        genes: names,
        missing_genes: Vec::new(),
        left_out,
        warnings,
        loss: None,
        molecules: Some(molecules),
    })
}

/// What the format needs of records.
fn serve(options: &Options) -> Result<Serve, UsageError> {
    let fields = options.fields.clone().unwrap_or(FieldsChoice::All);
    Ok(match (options.format, fields) {
        (Format::Atp, FieldsChoice::All) => Serve::Records,
        (Format::Atp, FieldsChoice::Named(_)) => {
            let reason = "records are copied as they are with --format atp, so all fields are served".to_owned();
            return Err(UsageError { option: "--fields".to_owned(), reason });
        }
        (Format::Extxyz, FieldsChoice::Named(mut names)) => {
            // Every frame has them.
            for needed in [POSITIONS, NUMBERS] {
                if !names.iter().any(|name| name == needed) {
                    names.push(needed.to_owned());
                }
            }
            Serve::Fields(FieldsChoice::Named(names))
        }
        (_, fields) => Serve::Fields(fields),
    })
}

fn npz_encoder(store: &AtompackStore, spec: MoleculeSpec, options: &Options) -> anyhow::Result<Flat> {
    let encoder = Flat::npz(spec)?;
    if encoder.n_arrays() > npz::MAX_MEMBERS {
        bail!("--format npz: {} arrays are more than an archive holds; choose some with --fields", encoder.n_arrays());
    }
    let m = options.batch_size.min(u32::try_from(store.schema().n_rows).unwrap_or(u32::MAX));
    let largest = Sizes::largest_buffer_bytes(store, &encoder, m);
    if largest > npz::MAX_FILE_BYTES {
        let largest = super::text::bytes(largest);
        bail!(
            "--format npz: a batch of the largest molecules takes {largest}, an archive 4 GiB; use a smaller --batch-size"
        );
    }
    Ok(encoder)
}

/// What all databases of a mount have in common.
fn database(store: &AtompackStore) -> Database {
    let (codec, level) = store.record_codec();
    let files = store.files().iter().filter(|file| file.n_rows() > 0);
    let record_format = files.map(|file| file.slot.record_format).max().unwrap_or(2);
    Database { codec, level, record_format, schema: store.union_schema().encode() }
}

fn facts(store: &AtompackStore) -> Molecules {
    let schema = store.schema();
    let columns = || schema.records.iter().flat_map(|records| &records.columns);
    let is_served = |name: &str| columns().any(|column| column.name == name);
    let atoms = |name: &str, kind: String, dtype: DType, shape: Vec<u64>| FieldFacts {
        name: name.to_owned(),
        kind,
        per_atom: true,
        optional: false,
        is_null: false,
        served: is_served(name),
        shape: Some((dtype, shape)),
    };
    let dtype = store.positions();
    let mut fields = vec![
        atoms(POSITIONS, format!("{dtype} x 3"), dtype, vec![3]),
        atoms(NUMBERS, "uint8".to_owned(), DType::U8, Vec::new()),
    ];
    fields.extend(store.fields().iter().map(|field| {
        let values = field.columns.and_then(|c| if c.element.is_none() { c.values } else { None });
        let column = values.and_then(|column| schema.records.as_ref()?.columns.get(column));
        FieldFacts {
            name: field.name.clone(),
            kind: field.section.tag.describe(),
            per_atom: field.section.belongs_to_atoms(),
            optional: true,
            is_null: is_null(field),
            served: field.columns.is_some(),
            shape: column.map(|column| (column.dtype, column.shape.clone())),
        }
    }));
    let files = store.files();
    Molecules {
        fields,
        n_atoms: files.iter().map(|file| file.index.atoms.total()).sum(),
        max_atoms: files.iter().map(|file| file.index.atoms.max()).max().unwrap_or(0),
        stored_bytes: files.iter().map(|file| file.index.stored.total()).sum(),
        decoded_bytes: files.iter().map(|file| file.index.raw().total()).sum(),
        files: files
            .iter()
            .map(|file| FileFacts {
                path: file.file.path().to_owned(),
                n_rows: file.n_rows(),
                codec: file.slot.codec.name(),
                record_format: file.slot.record_format,
                generation: file.slot.generation,
            })
            .collect(),
    }
}

/// Refuses options that only make sense for cells.
fn refuse_cell_options(options: &Options) -> Result<(), UsageError> {
    let s = &options.selection;
    let given = [
        ("--x", s.x.as_deref() != Some("X")),
        ("--layers", !s.layers.is_empty()),
        ("--obsm", !s.obsm.is_empty()),
        ("--obs", s.obs != ObsChoice::Auto),
        ("--names", s.names != NamesChoice::Auto),
        ("--genes", s.genes_column.is_some() || options.genes_file.is_some()),
        ("--dense", options.dense),
        ("--x-dtype", options.x_dtype.is_some()),
        ("--index-dtype", options.index_dtype.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => {
            let reason = "is for cells; molecules have --fields".to_owned();
            Err(UsageError { option: (*option).to_owned(), reason })
        }
    }
}
