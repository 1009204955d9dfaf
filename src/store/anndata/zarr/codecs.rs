//! From the codecs of an array's metadata to a chain of [`Filter`]s.
//!
//! Format 2 has an order, filters and a compressor; format 3 a list: array to array (`transpose`), array to bytes (`bytes`, `vlen-utf8`, or
//! `sharding_indexed`, which holds a list of its own), bytes to bytes. Codecs of numcodecs appear in both, in format 3 with a prefix. What
//! is not known is refused by name.

use serde_json::Value;

use crate::codec::Filter;
use crate::dtype::{DType, Stored};
use crate::num::to_usize;
use crate::store::anndata::node::ElemType;

use super::dtypes::{Described, describe_v2};

/// How the chunks of an array are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// What was done to a chunk (of a shard: to an inner one), in encode order.
    pub filters: Vec<Filter>,
    /// The same for people, with levels.
    pub names: Vec<String>,
    /// True for text of variable length.
    pub is_text: bool,
    /// Set if chunks lie in shards.
    pub shard: Option<Shard>,
}

/// What a shard looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Extent of the chunks inside.
    pub inner: Vec<u64>,
    /// True if the index stands before them, false if behind.
    pub index_at_start: bool,
    /// True if the index ends with a checksum.
    pub has_checksum: bool,
}

/// The chain of an array of format 2.
///
/// # Errors
/// A reason that names the codec.
pub fn chain_v2(
    filters: &[Value],
    compressor: &Value,
    columns_first: bool,
    chunk: &[u64],
    elem_size: usize,
) -> Result<Chain, String> {
    let mut chain = Chain::default();
    if columns_first {
        chain.add_transpose(chunk, elem_size);
    }
    for filter in filters {
        if id_of(filter) == Some("vlen-utf8") && chain.filters.is_empty() {
            chain.is_text = true;
        } else {
            chain.add(id_of(filter).unwrap_or_default(), filter, elem_size)?;
        }
    }
    if !compressor.is_null() {
        chain.add(id_of(compressor).unwrap_or_default(), compressor, elem_size)?;
    }
    chain.checked()
}

fn id_of(codec: &Value) -> Option<&str> {
    codec.get("id").and_then(Value::as_str)
}

/// True if the numbers of an array of format 3 are stored in big-endian order.
#[must_use]
pub fn is_big_endian(codecs: &[Value]) -> bool {
    codecs.iter().any(|codec| match name_of(codec) {
        "bytes" => configuration(codec, "endian").and_then(Value::as_str) == Some("big"),
        "sharding_indexed" => {
            configuration(codec, "codecs").and_then(Value::as_array).is_some_and(|inner| is_big_endian(inner))
        }
        _ => false,
    })
}

/// The chain of an array of format 3, in chunks (or shards) of extent `chunk`.
///
/// # Errors
/// A reason that names the codec.
pub fn chain_v3(codecs: &[Value], chunk: &[u64], described: &Described) -> Result<Chain, String> {
    let mut chain = Chain::default();
    let mut has_bytes = false;
    for codec in codecs {
        let name = name_of(codec);
        match name {
            "transpose" if !has_bytes => chain.add_order(codec, chunk, described.size)?,
            "bytes" if !has_bytes && described.size > 0 => has_bytes = true,
            "vlen-utf8" if !has_bytes && described.size == 0 => {
                has_bytes = true;
                chain.is_text = true;
            }
            "sharding_indexed" if !has_bytes && chain.filters.is_empty() => {
                has_bytes = true;
                chain = sharded(codec, chunk, described)?;
            }
            "bytes" | "vlen-utf8" | "sharding_indexed" | "transpose" => {
                return Err(format!("codec {name} in a place where it is not supported"));
            }
            _ if chain.shard.is_some() => return Err(format!("codec {name} around shards is not supported")),
            _ => chain.add(name.strip_prefix("numcodecs.").unwrap_or(name), codec, described.size)?,
        }
    }
    if !has_bytes {
        return Err("no codec makes bytes of its elements".to_owned());
    }
    chain.checked()
}

/// The chain inside shards of extent `shard`.
fn sharded(codec: &Value, shard: &[u64], described: &Described) -> Result<Chain, String> {
    let list = |key: &str| configuration(codec, key).and_then(Value::as_array).map(Vec::as_slice);
    let inner: Option<Vec<u64>> = list("chunk_shape").and_then(|dims| dims.iter().map(Value::as_u64).collect());
    let Some(inner) = inner.filter(|inner| inner.len() == shard.len()) else {
        return Err("shards without a chunk shape".to_owned());
    };
    let divides = |(outer, inner): (&u64, &u64)| *inner > 0 && outer % inner == 0;
    if !shard.iter().zip(&inner).all(divides) {
        return Err(format!("shards of {shard:?} in chunks of {inner:?}"));
    }
    let index: Vec<&str> = list("index_codecs").unwrap_or_default().iter().map(name_of).collect();
    let has_checksum = match index.as_slice() {
        ["bytes"] => false,
        ["bytes", "crc32c"] => true,
        other => return Err(format!("shard index codecs {other:?} are not supported")),
    };
    if is_big_endian(list("index_codecs").unwrap_or_default()) {
        return Err("a big-endian shard index is not supported".to_owned());
    }
    let index_at_start = match configuration(codec, "index_location").and_then(Value::as_str) {
        None | Some("end") => false,
        Some("start") => true,
        Some(other) => return Err(format!("shard index location {other} is unknown")),
    };
    let codecs = list("codecs").unwrap_or_default();
    if codecs.iter().any(|codec| name_of(codec) == "sharding_indexed") {
        return Err("shards inside shards are not supported".to_owned());
    }
    let chain = chain_v3(codecs, &inner, described)?;
    Ok(Chain { shard: Some(Shard { inner, index_at_start, has_checksum }), ..chain })
}

/// Name of a codec of format 3: an object with a name, or the name alone.
fn name_of(codec: &Value) -> &str {
    codec.as_str().or_else(|| codec.get("name").and_then(Value::as_str)).unwrap_or_default()
}

fn configuration<'v>(codec: &'v Value, key: &str) -> Option<&'v Value> {
    codec.get("configuration")?.get(key)
}

impl Chain {
    /// Adds the codec `id`; its parameters stand in `codec` itself (format 2) or in its configuration.
    fn add(&mut self, id: &str, codec: &Value, elem_size: usize) -> Result<(), String> {
        let parameter = |key: &str| configuration(codec, key).or_else(|| codec.get(key));
        let integer = |key: &str| parameter(key).and_then(Value::as_u64);
        let level = |key: &str| integer(key).map_or_else(String::new, |level| format!("({level})"));
        let (filter, name) = match id {
            "gzip" => (Filter::Deflate, format!("gzip{}", level("level"))),
            "zlib" => (Filter::Deflate, format!("zlib{}", level("level"))),
            "zstd" => (Filter::Zstd, "zstd".to_owned()),
            "blosc" => match parameter("cname").and_then(Value::as_str) {
                Some("snappy") => return Err("codec blosc with snappy is not supported".to_owned()),
                cname => (Filter::Blosc, format!("blosc({})", cname.unwrap_or("?"))),
            },
            "lz4" => (Filter::Lz4Block, "lz4".to_owned()),
            "crc32c" if parameter("location").and_then(Value::as_str).unwrap_or("end") == "end" => {
                (Filter::Crc32c, "crc32c".to_owned())
            }
            "fletcher32" => (Filter::Fletcher32, "fletcher32".to_owned()),
            "shuffle" => {
                let size = integer("elementsize").filter(|n| (1..=1024).contains(n)).map_or(elem_size, to_usize);
                (Filter::Shuffle { elem_size: size.max(1) }, "shuffle".to_owned())
            }
            "delta" => (Filter::Delta { stored: delta_type(&parameter)? }, "delta".to_owned()),
            "" => return Err("a codec without a name".to_owned()),
            other => return Err(format!("codec {other} is not supported")),
        };
        self.filters.push(filter);
        self.names.push(name);
        Ok(())
    }

    /// Adds a `transpose` of format 3.
    fn add_order(&mut self, codec: &Value, chunk: &[u64], elem_size: usize) -> Result<(), String> {
        let order = configuration(codec, "order");
        let axes: Option<Vec<usize>> = match order {
            Some(Value::Array(axes)) => axes.iter().map(|a| a.as_u64().map(to_usize)).collect(),
            Some(Value::String(name)) if name == "C" => Some((0..chunk.len()).collect()),
            Some(Value::String(name)) if name == "F" => Some((0..chunk.len()).rev().collect()),
            _ => None,
        };
        match axes {
            Some(axes) if axes.iter().copied().eq(0..chunk.len()) => Ok(()),
            Some(axes) if axes.iter().copied().eq((0..chunk.len()).rev()) => {
                self.add_transpose(chunk, elem_size);
                Ok(())
            }
            _ => Err("codec transpose with an unknown order".to_owned()),
        }
    }

    /// A matrix stored column by column; arrays of one dimension look the same either way.
    fn add_transpose(&mut self, chunk: &[u64], elem_size: usize) {
        if let [n_rows, _, ..] = chunk {
            self.filters.push(Filter::Transpose { n_rows: to_usize(*n_rows), elem_size });
            self.names.push("transpose".to_owned());
        }
    }

    fn checked(self) -> Result<Self, String> {
        let compressors = [Filter::Deflate, Filter::Zstd, Filter::Blosc, Filter::Lz4Block];
        if self.filters.iter().filter(|filter| compressors.contains(filter)).count() > 1 {
            return Err(format!("is compressed twice ({})", self.names.join(", ")));
        }
        if self.is_text && self.filters.iter().any(|f| matches!(f, Filter::Shuffle { .. } | Filter::Delta { .. })) {
            return Err(format!("text with {} is not supported", self.names.join(", ")));
        }
        Ok(self)
    }
}

/// The element type of the codec delta, which must be the same before and after it.
fn delta_type<'v>(parameter: &impl Fn(&str) -> Option<&'v Value>) -> Result<Stored, String> {
    let unknown = || "codec delta of an unknown type".to_owned();
    let dtype = parameter("dtype").ok_or_else(unknown)?;
    if parameter("astype").is_some_and(|astype| astype != dtype) {
        return Err("codec delta that changes the type is not supported".to_owned());
    }
    match describe_v2(dtype).elem {
        ElemType::Number(stored) if !matches!(stored.dtype, DType::Bool | DType::F16) => Ok(stored),
        _ => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::dtypes::describe_v3;
    use super::*;

    fn v3(codecs: &Value, chunk: &[u64]) -> Result<Chain, String> {
        chain_v3(codecs.as_array().unwrap(), chunk, &describe_v3(&json!("float32"), false))
    }

    #[test]
    fn chains_of_format_2() {
        let blosc = json!({"id": "blosc", "cname": "lz4", "clevel": 5});
        let chain = chain_v2(&[], &blosc, true, &[3, 4], 4).unwrap();
        assert_eq!(chain.filters, [Filter::Transpose { n_rows: 3, elem_size: 4 }, Filter::Blosc]);
        assert_eq!(chain.names, ["transpose", "blosc(lz4)"]);
        let filters = [json!({"id": "delta", "dtype": ">i4"}), json!({"id": "shuffle", "elementsize": 4})];
        let chain = chain_v2(&filters, &json!({"id": "zlib", "level": 1}), true, &[9], 4).unwrap();
        let stored = Stored { dtype: DType::I32, big_endian: true };
        assert_eq!(chain.filters, [Filter::Delta { stored }, Filter::Shuffle { elem_size: 4 }, Filter::Deflate]);
        assert!(chain_v2(&[json!({"id": "vlen-utf8"})], &Value::Null, false, &[9], 0).unwrap().is_text);
        for (codec, word) in [
            (json!({"id": "bz2"}), "bz2"),
            (json!({"id": "blosc", "cname": "snappy"}), "snappy"),
            (json!({}), "without a name"),
        ] {
            let error = chain_v2(&[], &codec, false, &[9], 4).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let delta = json!({"id": "delta", "dtype": "<i4", "astype": "<i2"});
        assert!(chain_v2(&[delta], &Value::Null, false, &[9], 4).is_err());
    }

    #[test]
    fn chains_of_format_3() {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "big"}});
        let zstd = json!({"name": "zstd", "configuration": {"level": 0}});
        let chain = v3(&json!([bytes, zstd, {"name": "crc32c"}]), &[5]).unwrap();
        assert_eq!(chain.filters, [Filter::Zstd, Filter::Crc32c]);
        assert!(is_big_endian(std::slice::from_ref(&bytes)) && !is_big_endian(std::slice::from_ref(&zstd)));
        let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
        let chain = v3(&json!([transpose, bytes]), &[5, 2]).unwrap();
        assert_eq!(chain.filters, [Filter::Transpose { n_rows: 5, elem_size: 4 }]);
        let lz4 = json!({"name": "numcodecs.lz4", "configuration": {"acceleration": 1}});
        assert_eq!(v3(&json!(["bytes", lz4]), &[5]).unwrap().filters, [Filter::Lz4Block]);
        let shard = |inner: Value, index: Value| {
            let configuration =
                json!({"chunk_shape": inner, "codecs": [transpose, bytes, zstd], "index_codecs": index});
            json!([{"name": "sharding_indexed", "configuration": configuration}])
        };
        let chain = v3(&shard(json!([2, 2]), json!(["bytes", "crc32c"])), &[4, 6]).unwrap();
        assert_eq!(chain.filters, [Filter::Transpose { n_rows: 2, elem_size: 4 }, Filter::Zstd]);
        assert_eq!(chain.shard, Some(Shard { inner: vec![2, 2], index_at_start: false, has_checksum: true }));
        assert!(is_big_endian(shard(json!([1, 1]), json!([])).as_array().unwrap()));
        for refused in [
            shard(json!([3, 2]), json!(["bytes"])),
            shard(json!([0, 2]), json!(["bytes"])),
            shard(json!([2]), json!(["bytes"])),
            shard(json!([2, 2]), json!(["bytes", "gzip"])),
            json!([zstd]),
            json!([bytes, bytes]),
            json!([bytes, transpose]),
            json!([bytes, zstd, zstd]),
            json!([bytes, {"name": "other"}]),
            json!([{"name": "transpose", "configuration": {"order": [0, 0]}}, bytes]),
            json!(["vlen-utf8"]),
        ] {
            assert!(v3(&refused, &[4, 6]).is_err(), "{refused}");
        }
    }
}
