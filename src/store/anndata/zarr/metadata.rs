//! The metadata of one node, in either format.
//!
//! Format 3 has one document, `zarr.json`; format 2 has `.zarray` or `.zgroup`, and `.zattrs` beside it. Only the node's own documents are
//! read: consolidated copies at the root may be stale. A codec, a type or a rule that is not known does no harm before the array is
//! asked for, since other arrays of the store may do without.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::codecs::{Chain, chain_v2, chain_v3, is_big_endian};
use super::dtypes::{Described, describe_v2, describe_v3};
use super::keys::Keys;

/// Attributes of a node.
pub type Attributes = Map<String, Value>;

/// What an array looks like.
#[derive(Debug, Clone)]
pub struct ArrayMeta {
    /// Extent in elements.
    pub shape: Vec<u64>,
    /// Extent of what one file holds: a chunk, or a shard.
    pub chunk: Vec<u64>,
    /// The elements.
    pub described: Described,
    /// The fill value, as written.
    pub fill: Value,
    /// How chunks are named; a reason if the rule is not known.
    pub keys: Result<Keys, String>,
    /// How chunks are stored; a reason if that is not known.
    pub chain: Result<Chain, String>,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A group.
    Group,
    /// An array.
    Array(Box<ArrayMeta>),
}

#[derive(Deserialize)]
struct V3 {
    zarr_format: u64,
    node_type: String,
    #[serde(default)]
    attributes: Option<Attributes>,
    shape: Option<Vec<u64>>,
    data_type: Option<Value>,
    chunk_grid: Option<Named>,
    chunk_key_encoding: Option<Named>,
    #[serde(default)]
    fill_value: Value,
    #[serde(default)]
    codecs: Vec<Value>,
    #[serde(default)]
    storage_transformers: Vec<Value>,
}

/// An extension point: a name and its configuration.
#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(default)]
    configuration: Value,
}

#[derive(Deserialize)]
struct V2 {
    zarr_format: u64,
    shape: Vec<u64>,
    chunks: Vec<u64>,
    dtype: Value,
    #[serde(default)]
    compressor: Value,
    #[serde(default)]
    filters: Option<Vec<Value>>,
    #[serde(default)]
    fill_value: Value,
    order: Option<String>,
    dimension_separator: Option<String>,
}

#[derive(Deserialize)]
struct V2Group {
    zarr_format: u64,
}

fn parse<'a, T: Deserialize<'a>>(document: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(document).map_err(|e| format!("damaged metadata ({e})"))
}

/// A `zarr.json`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_v3(document: &[u8]) -> Result<(Kind, Attributes), String> {
    let doc: V3 = parse(document)?;
    if doc.zarr_format != 3 {
        return Err(format!("zarr format {} in zarr.json", doc.zarr_format));
    }
    let attributes = doc.attributes.unwrap_or_default();
    match doc.node_type.as_str() {
        "group" => return Ok((Kind::Group, attributes)),
        "array" => {}
        other => return Err(format!("is a {other}, neither a group nor an array")),
    }
    let (Some(shape), Some(data_type), Some(grid)) = (doc.shape, doc.data_type, doc.chunk_grid) else {
        return Err("lacks shape, data_type or chunk_grid".to_owned());
    };
    let described = describe_v3(&data_type, is_big_endian(&doc.codecs));
    let extent = grid.configuration.get("chunk_shape").and_then(Value::as_array);
    let extent: Option<Vec<u64>> = extent.and_then(|dims| dims.iter().map(Value::as_u64).collect());
    let (chunk, mut chain) = match (grid.name.as_str(), extent) {
        ("regular", Some(chunk)) => {
            let chunk = checked_chunk(chunk, &shape)?;
            let chain = chain_v3(&doc.codecs, &chunk, &described);
            (chunk, chain)
        }
        (name, _) => (vec![1; shape.len()], Err(format!("chunk grid {name} is not supported"))),
    };
    if !doc.storage_transformers.is_empty() {
        chain = Err("storage transformers are not supported".to_owned());
    }
    let keys = keys_v3(doc.chunk_key_encoding, shape.len());
    let array = ArrayMeta { shape, chunk, described, fill: doc.fill_value, keys, chain };
    Ok((Kind::Array(Box::new(array)), attributes))
}

fn keys_v3(encoding: Option<Named>, rank: usize) -> Result<Keys, String> {
    let encoding = encoding.ok_or_else(|| "no chunk key encoding".to_owned())?;
    let prefix = match encoding.name.as_str() {
        "default" => true,
        "v2" => false,
        other => return Err(format!("chunk key encoding {other} is not supported: its keys may leave the store")),
    };
    let separator = encoding.configuration.get("separator").map(|separator| separator.as_str().unwrap_or_default());
    Ok(Keys { prefix, separator: separator_of(separator, if prefix { '/' } else { '.' })?, rank })
}

fn separator_of(separator: Option<&str>, usual: char) -> Result<char, String> {
    match separator {
        None => Ok(usual),
        Some(".") => Ok('.'),
        Some("/") => Ok('/'),
        Some(other) => Err(format!("chunk key separator {other:?} is not supported")),
    }
}

/// A `.zarray`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_v2_array(document: &[u8]) -> Result<Kind, String> {
    let doc: V2 = parse(document)?;
    if doc.zarr_format != 2 {
        return Err(format!("zarr format {} in .zarray", doc.zarr_format));
    }
    let described = describe_v2(&doc.dtype);
    let chunk = checked_chunk(doc.chunks, &doc.shape)?;
    let filters = doc.filters.unwrap_or_default();
    let chain = match doc.order.as_deref() {
        None | Some("C") => chain_v2(&filters, &doc.compressor, false, &chunk, described.size),
        Some("F") => chain_v2(&filters, &doc.compressor, true, &chunk, described.size),
        Some(other) => Err(format!("order {other} is unknown")),
    };
    // Objects are text only if a codec says so.
    let chain = chain.and_then(|chain| match (described.size, chain.is_text) {
        (0, false) => Err("objects that are not stored as vlen-utf8".to_owned()),
        (1.., true) => Err("codec vlen-utf8 of what is not text".to_owned()),
        _ => Ok(chain),
    });
    let separator = separator_of(doc.dimension_separator.as_deref(), '.');
    let keys = separator.map(|separator| Keys { prefix: false, separator, rank: doc.shape.len() });
    Ok(Kind::Array(Box::new(ArrayMeta { shape: doc.shape, chunk, described, fill: doc.fill_value, keys, chain })))
}

/// A `.zgroup`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_v2_group(document: &[u8]) -> Result<Kind, String> {
    match parse::<V2Group>(document)?.zarr_format {
        2 => Ok(Kind::Group),
        other => Err(format!("zarr format {other} in .zgroup")),
    }
}

/// A `.zattrs`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_v2_attributes(document: &[u8]) -> Result<Attributes, String> {
    parse(document)
}

fn checked_chunk(chunk: Vec<u64>, shape: &[u64]) -> Result<Vec<u64>, String> {
    if chunk.len() != shape.len() {
        return Err(format!("chunks of {} dimensions in an array of {}", chunk.len(), shape.len()));
    }
    // Arrays without elements may have chunks without elements.
    Ok(chunk.into_iter().map(|n| n.max(1)).collect())
}
