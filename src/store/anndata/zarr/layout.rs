//! Where the chunks of an array lie, as a [`RawArray`].
//!
//! A chunk is a file, a member of an archive, or lies inside a shard, whose index tells where. Indexes are read and checked here, once:
//! their checksum, since the chunks themselves have none, and that every chunk lies inside its shard. Whatever is not there is the fill
//! value. Tables and buffers are limited by what the files of the store justify.

use super::codecs::Shard;
use super::dtypes::fill_value;
use super::metadata::ArrayMeta;
use super::node::ZarrNode;
use super::store::{StoredChunk, StoredChunks, stored_bytes};
use crate::codec::{Filter, Pipeline, crc32c_checksum};
use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::{MAX_CHUNK_BYTES, Node, StorageInfo};
use crate::store::anndata::raw_array::RawArray;
use crate::store::array::Array;
use crate::store::chunk_map::{ChunkEntry, ChunkFiles, Storage, UNALLOCATED};
use crate::store::error::OpenError;

/// A chunk table this large is made for any store; larger ones only if its files are as large.
const FREE_TABLE_BYTES: u64 = 64 << 20;
/// Most chunks of an array.
const MAX_CHUNKS: u64 = 1 << 31;
/// Bytes of an index entry.
const INDEX_ENTRY_BYTES: u64 = 16;
/// Bytes of the checksum behind an index.
const CHECKSUM_BYTES: u64 = 4;

const REWRITE: &str = "write it again with zarr's default codecs";

/// The chunks of an array, found.
pub struct Chunks {
    /// Extent of the array.
    pub dims: [u64; 2],
    /// Extent of a chunk.
    pub chunk: [u64; 2],
    /// Their files.
    pub files: ChunkFiles,
    /// Where they lie, row by row.
    pub entries: Array<ChunkEntry>,
    /// How they are stored, in encode order.
    pub filters: Vec<Filter>,
}

/// Builds the raw array of an array whose elements all have the same size.
///
/// # Errors
/// [`OpenError::Refused`] if the data cannot be read, or not safely.
pub fn raw_array(node: &ZarrNode, meta: &ArrayMeta) -> Result<RawArray, OpenError> {
    let elem_size = meta.described.size.max(1);
    let Some(fill) = fill_value(&meta.fill, &meta.described) else {
        return Err(node.refused(&format!("fill value {} is none of its type", meta.fill), REWRITE));
    };
    let chunk_bytes = chunk_bytes(node, meta)?;
    let Chunks { dims, chunk, files, entries, filters } = find(node, meta, Some(chunk_bytes))?;
    let pipeline = Pipeline::new(filters, to_usize(chunk_bytes));
    Ok(RawArray { files, dims, elem_size, chunk, pipeline, fill, storage: Storage::Chunked(entries) })
}

/// Size of a decoded chunk.
fn chunk_bytes(node: &ZarrNode, meta: &ArrayMeta) -> Result<u64, OpenError> {
    let chunk = match &meta.chain {
        Ok(chain) => chain.shard.as_ref().map_or(&meta.chunk, |shard| &shard.inner),
        Err(reason) => return Err(node.refused(reason, REWRITE)),
    };
    let bytes = chunk.iter().try_fold(to_u64(meta.described.size.max(1)), |n, &d| n.checked_mul(d));
    match bytes {
        Some(bytes) if bytes <= MAX_CHUNK_BYTES => Ok(bytes),
        _ => Err(node.refused(&format!("chunks of {chunk:?} elements"), "write it again with smaller chunks")),
    }
}

/// Finds the chunks. `chunk_bytes` is their decoded size, if it is known.
///
/// # Errors
/// As [`raw_array`].
pub fn find(node: &ZarrNode, meta: &ArrayMeta, chunk_bytes: Option<u64>) -> Result<Chunks, OpenError> {
    let chain = meta.chain.as_ref().map_err(|reason| node.refused(reason, REWRITE))?;
    let keys = *meta.keys.as_ref().map_err(|reason| node.refused(reason, REWRITE))?;
    let pair = |dims: &[u64]| match dims {
        [] => Ok([1, 1]),
        [n] => Ok([*n, 1]),
        [n, m] => Ok([*n, *m]),
        more => Err(node.refused(&format!("has {} dimensions", more.len()), "leave it out")),
    };
    let (dims, outer) = (pair(&meta.shape)?, pair(&meta.chunk)?);
    let grid = [dims[0].div_ceil(outer[0]), dims[1].div_ceil(outer[1])];
    let found = node.store().chunks(node.path(), keys, grid)?;
    node.source().saw(if node.store().is_archive() { 0 } else { stored_bytes(&found.chunks) });
    // A chunk of an archive may be compressed once more, as a member.
    let mut filters = chain.filters.clone();
    if found.chunks.iter().flatten().any(|chunk| chunk.deflated) {
        filters.push(Filter::ZipDeflate);
    }
    let plain_bytes = chunk_bytes.filter(|_| chain.filters.is_empty());
    let (chunk, files, entries) = match &chain.shard {
        None => (outer, found.files, plain_entries(node, &found, plain_bytes, filters.len())?),
        Some(shard) => {
            let inner = pair(&shard.inner)?;
            let per_shard = [outer[0] / inner[0], outer[1] / inner[1]];
            let files = ChunkFiles { per_file: found.files.per_file.map(|_| per_shard), ..found.files };
            let shape = ShardGrid { dims, inner, per_shard, grid };
            (inner, files, shard_entries(node, &found, shard, &shape, plain_bytes)?)
        }
    };
    Ok(Chunks { dims, chunk, files, entries: entries.into(), filters })
}

/// Chunks that are files or members of their own.
fn plain_entries(
    node: &ZarrNode,
    found: &StoredChunks,
    plain_bytes: Option<u64>,
    n_filters: usize,
) -> Result<Vec<ChunkEntry>, OpenError> {
    let mut entries = Vec::with_capacity(found.chunks.len());
    let member_mask = member_mask(found, n_filters);
    for (number, chunk) in found.chunks.iter().enumerate() {
        let Some(chunk) = chunk else {
            entries.push(MISSING);
            continue;
        };
        let plain_bytes = plain_bytes.filter(|_| !chunk.deflated);
        let mut entry = checked_entry(node, number, chunk.address, chunk.len, plain_bytes)?;
        if !chunk.deflated {
            entry.mask = member_mask;
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Where some members of an archive are compressed, the last of `n_filters` filters undoes that: the mask of the others, which skip it.
fn member_mask(found: &StoredChunks, n_filters: usize) -> u32 {
    let last = u32::try_from(n_filters).ok().and_then(|n| n.checked_sub(1));
    let any = found.chunks.iter().flatten().any(|chunk| chunk.deflated);
    last.filter(|_| any).and_then(|last| 1_u32.checked_shl(last)).unwrap_or(0)
}

const MISSING: ChunkEntry = ChunkEntry { address: UNALLOCATED, stored_len: 0, mask: 0 };

fn checked_entry(
    node: &ZarrNode,
    number: usize,
    address: u64,
    len: u64,
    plain_bytes: Option<u64>,
) -> Result<ChunkEntry, OpenError> {
    let refused = |reason: String| node.refused(&reason, "the store is damaged: copy or write it again");
    if let Some(bytes) = plain_bytes.filter(|&bytes| bytes != len) {
        return Err(refused(format!("chunk {number} has {len} bytes, not {bytes}")));
    }
    match u32::try_from(len) {
        Ok(stored_len) => Ok(ChunkEntry { address, stored_len, mask: 0 }),
        Err(_) => Err(refused(format!("chunk {number} has {len} bytes"))),
    }
}

/// How shards and their chunks lie in an array.
struct ShardGrid {
    dims: [u64; 2],
    inner: [u64; 2],
    per_shard: [u64; 2],
    /// Shards along both axes.
    grid: [u64; 2],
}

/// Chunks inside shards.
fn shard_entries(
    node: &ZarrNode,
    found: &StoredChunks,
    shard: &Shard,
    shape: &ShardGrid,
    plain_bytes: Option<u64>,
) -> Result<Vec<ChunkEntry>, OpenError> {
    let chunks = [shape.dims[0].div_ceil(shape.inner[0]), shape.dims[1].div_ceil(shape.inner[1])];
    let n = chunks[0].saturating_mul(chunks[1]);
    let table_bytes = n.saturating_mul(to_u64(size_of::<ChunkEntry>()));
    if n > MAX_CHUNKS || table_bytes > node.source().seen_bytes().max(FREE_TABLE_BYTES) {
        let reason = format!("is cut into {n} chunks, in files of {} bytes", node.source().seen_bytes());
        return Err(node.refused(&reason, "write it again with larger chunks"));
    }
    let mut entries = vec![MISSING; to_usize(n)];
    let mut number = 0_u64;
    for stored in &found.chunks {
        let (si, sj) = (number / shape.grid[1].max(1), number % shape.grid[1].max(1));
        number += 1;
        let Some(stored) = stored else { continue };
        let file = found.files.of(number - 1, shape.grid[1].max(1));
        let index = read_index(node, shard, shape, file, stored)?;
        for (k, place) in index.as_chunks::<16>().0.iter().enumerate() {
            let (ki, kj) = (to_u64(k) / shape.per_shard[1], to_u64(k) % shape.per_shard[1]);
            let (i, j) = (si * shape.per_shard[0] + ki, sj * shape.per_shard[1] + kj);
            // Where the array ends before its last shard, places are left over.
            if i >= chunks[0] || j >= chunks[1] {
                continue;
            }
            let at = to_usize(i * chunks[1] + j);
            let [offset, len] = words(place);
            if (offset, len) == (u64::MAX, u64::MAX) {
                continue;
            }
            if offset.checked_add(len).is_none_or(|end| end > stored.len) {
                let reason = format!("chunk {at} at {offset}+{len} is outside its shard ({} bytes)", stored.len);
                return Err(node.refused(&reason, "the store is damaged: copy or write it again"));
            }
            if let Some(entry) = entries.get_mut(at) {
                *entry = checked_entry(node, at, stored.address + offset, len, plain_bytes)?;
            }
        }
    }
    Ok(entries)
}

/// The index of one shard, checked, without its checksum.
fn read_index(
    node: &ZarrNode,
    shard: &Shard,
    shape: &ShardGrid,
    file: u32,
    stored: &StoredChunk,
) -> Result<Vec<u8>, OpenError> {
    let refused = |reason: String| node.refused(&reason, "the store is damaged: copy or write it again");
    if stored.deflated {
        let reason = "a shard that the archive compressed";
        return Err(node.refused(reason, "unzip the archive and give the folder, or zip it without compression"));
    }
    let entries = shape.per_shard[0].checked_mul(shape.per_shard[1]).and_then(|n| n.checked_mul(INDEX_ENTRY_BYTES));
    let trailer = if shard.has_checksum { CHECKSUM_BYTES } else { 0 };
    let len = match entries.and_then(|n| n.checked_add(trailer)) {
        Some(len) if len <= stored.len => len,
        _ => return Err(refused(format!("a shard of {} bytes is shorter than its index", stored.len))),
    };
    let address = stored.address + if shard.index_at_start { 0 } else { stored.len - len };
    let mut index = vec![0; to_usize(len)];
    node.source().read_at(file, address, &mut index).map_err(|e| refused(e.to_string()))?;
    if shard.has_checksum {
        let Some((data, sum)) = index.split_last_chunk::<4>() else { return Ok(Vec::new()) };
        if crc32c_checksum(data) != u32::from_le_bytes(*sum) {
            return Err(refused("the checksum of a shard index does not match".to_owned()));
        }
        let data_len = data.len();
        index.truncate(data_len);
    }
    Ok(index)
}

fn words(place: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_le_bytes(*place);
    // The low and the high half.
    [value & u128::from(u64::MAX), value >> 64].map(|half| u64::try_from(half).unwrap_or(u64::MAX))
}

/// How an array is stored, without refusing anything.
pub fn storage_info(node: &ZarrNode, meta: &ArrayMeta) -> StorageInfo {
    let mut storage = StorageInfo { chunk: meta.chunk.clone(), ..StorageInfo::default() };
    match (&meta.chain, &meta.keys) {
        (Ok(chain), Ok(_)) => {
            storage.filters.clone_from(&chain.names);
            if let Some(shard) = &chain.shard {
                storage.shard.clone_from(&meta.chunk);
                storage.chunk.clone_from(&shard.inner);
            }
        }
        (Err(reason), _) | (_, Err(reason)) => storage.refused = Some(reason.clone()),
    }
    if let (Ok(keys), true) = (&meta.keys, meta.shape.len() <= 2) {
        let count =
            |axis: usize| meta.shape.get(axis).map_or(1, |n| n.div_ceil(meta.chunk.get(axis).copied().unwrap_or(1)));
        match node.store().chunks(node.path(), *keys, [count(0), count(1)]) {
            Ok(found) => storage.stored_bytes = stored_bytes(&found.chunks),
            Err(OpenError::Refused { reason, .. }) => storage.refused = Some(reason),
            Err(OpenError::Io { source, .. }) => storage.refused = Some(source.to_string()),
        }
    }
    storage
}
