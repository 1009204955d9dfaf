//! Where the bytes of a dataset lie: its storage layout as a [`RawArray`].
//!
//! Everything is checked against the file before it is believed: that data are in this file at all (no external files, no
//! virtual dataset), that every chunk lies inside it, on the grid and once, that filters are known, and that no table or
//! buffer is allocated by a number that the size of the file does not justify.

use std::sync::Arc;

use super::library::{self as lib, FilterInfo, Id, LibraryError, ListedChunk, layout};
use super::node::H5Node;
use super::types::holds_pointers;
use crate::codec::{Filter, Pipeline};
use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::{ArrayInfo, ElemType, MAX_CHUNK_BYTES, Node, StorageInfo, TextType};
use crate::store::anndata::raw_array::RawArray;
use crate::store::array::Array;
use crate::store::chunk_map::{ChunkEntry, ChunkFiles, ChunkMap, Storage, UNALLOCATED};
use crate::store::error::OpenError;

/// Most chunks of an array.
const MAX_CHUNKS: u64 = 1 << 31;
/// A chunk table this large is allocated for any file; larger ones only if the file is as large.
const FREE_TABLE_BYTES: u64 = 64 << 20;
/// Largest dataset of compact layout: it lies in one object header message.
const MAX_COMPACT_BYTES: u64 = 1 << 16;

const REWRITE: &str = "write it again with compression=\"gzip\" or none";

/// Builds the raw array of a dataset.
///
/// # Errors
/// [`OpenError::Refused`] if the data cannot be read, or not safely.
pub fn raw_array(node: &H5Node, dataset: &Id, info: &ArrayInfo) -> Result<RawArray, OpenError> {
    let fault = |e: LibraryError| node.fault(&e);
    let dims = match info.dims.as_slice() {
        _ if info.is_null => return Err(node.refused("holds no value", "leave it out")),
        [] => [1, 1],
        [n] => [*n, 1],
        [n, m] => [*n, *m],
        more => return Err(node.refused(&format!("has {} dimensions", more.len()), "leave it out")),
    };
    let elem_size = info.elem_size.max(1);
    let creation = lib::creation(dataset).map_err(fault)?;
    if lib::external_files(&creation).map_err(fault)? > 0 {
        let reason = "points outside the file (external storage)";
        return Err(node.refused(reason, "copy the data into one file"));
    }
    let virtual_chunk = ChunkMap::virtual_chunk(dims[0], dims[1], to_u64(elem_size));
    let virtual_bytes = virtual_chunk[0].saturating_mul(virtual_chunk[1]).saturating_mul(to_u64(elem_size));
    let mut array = RawArray {
        files: ChunkFiles::one(0),
        dims,
        elem_size,
        chunk: virtual_chunk,
        pipeline: Pipeline::new([], to_usize(virtual_bytes)),
        fill: vec![0; elem_size],
        storage: Storage::Unallocated,
    };
    if matches!(info.elem, ElemType::Number(_)) {
        let datatype = lib::dataset_type(dataset).map_err(fault)?;
        array.fill = lib::fill_value(&creation, &datatype, elem_size).map_err(fault)?;
    }
    let total = array.total_bytes();
    match lib::storage_layout(&creation).map_err(fault)? {
        layout::COMPACT => array.storage = compact(node, dataset, info, total)?,
        layout::CONTIGUOUS => array.storage = contiguous(node, dataset, total)?,
        layout::CHUNKED => chunked(node, dataset, &creation, info.dims.len(), &mut array)?,
        layout::VIRTUAL => {
            let reason = "points outside the file (virtual dataset)";
            return Err(node.refused(reason, "copy the data into one file"));
        }
        other => return Err(node.refused(&format!("storage layout {other} is unknown"), REWRITE)),
    }
    if !matches!(array.storage, Storage::Chunked(_)) && n_chunks(&array) > MAX_CHUNKS {
        return Err(node.refused("has too many values", "leave it out"));
    }
    Ok(array)
}

fn n_chunks(array: &RawArray) -> u64 {
    array.dims[0].div_ceil(array.chunk[0]).saturating_mul(array.dims[1].div_ceil(array.chunk[1]))
}

fn compact(node: &H5Node, dataset: &Id, info: &ArrayInfo, total: u64) -> Result<Storage, OpenError> {
    if total > MAX_COMPACT_BYTES {
        return Err(node.refused(&format!("compact data of {total} bytes"), REWRITE));
    }
    let fault = |e: LibraryError| node.fault(&e);
    let datatype = match &info.elem {
        ElemType::Text(TextType::Variable) => lib::text_reference_type().map_err(fault)?,
        other if holds_pointers(other) => {
            return Err(node.refused("records of variable length in compact layout", "write it again with chunks"));
        }
        _ => lib::dataset_type(dataset).map_err(fault)?,
    };
    let bytes = lib::read_compact(dataset, &datatype, to_usize(total)).map_err(fault)?;
    Ok(Storage::Resident(Arc::from(bytes)))
}

fn contiguous(node: &H5Node, dataset: &Id, total: u64) -> Result<Storage, OpenError> {
    let Some(address) = lib::dataset_address(dataset) else { return Ok(Storage::Unallocated) };
    let size = node.file_bytes();
    if address.checked_add(total).is_none_or(|end| end > size) {
        let reason = format!("data at {address}+{total} are outside the file ({size} bytes)");
        return Err(node.refused(&reason, "copy or download it again"));
    }
    Ok(Storage::Contiguous(address))
}

fn chunked(node: &H5Node, dataset: &Id, creation: &Id, rank: usize, array: &mut RawArray) -> Result<(), OpenError> {
    let fault = |e: LibraryError| node.fault(&e);
    let extent = lib::chunk_extent(creation, rank).map_err(fault)?;
    array.chunk = match extent.as_slice() {
        [n] => [(*n).max(1), 1],
        [n, m] => [(*n).max(1), (*m).max(1)],
        _ => return Err(node.refused("chunks of another rank than the data", REWRITE)),
    };
    let chunk_bytes = array.chunk[0].saturating_mul(array.chunk[1]).saturating_mul(to_u64(array.elem_size));
    if chunk_bytes > MAX_CHUNK_BYTES {
        return Err(node.refused(&format!("chunks of {chunk_bytes} bytes"), "write it again with smaller chunks"));
    }
    let listed = lib::filters(creation).map_err(fault)?;
    let filters =
        listed.iter().map(|f| Filter::from_hdf5(f.id, &f.values, array.elem_size)).collect::<Result<Vec<_>, _>>();
    let filters = filters.map_err(|reason| node.refused(&reason, "write it again with compression=\"gzip\""))?;
    if !filters.is_empty() && lib::edge_chunks_unfiltered(creation).map_err(fault)? {
        return Err(node.refused("edge chunks are stored without filters", REWRITE));
    }
    array.pipeline = Pipeline::new(filters, to_usize(chunk_bytes));
    array.storage = Storage::Chunked(chunk_table(node, dataset, rank, array)?);
    Ok(())
}

/// The chunks of `array`, in the order of the grid.
fn chunk_table(node: &H5Node, dataset: &Id, rank: usize, array: &RawArray) -> Result<Array<ChunkEntry>, OpenError> {
    let file_bytes = node.file_bytes();
    let n = n_chunks(array);
    let table_bytes = n.saturating_mul(to_u64(size_of::<ChunkEntry>()));
    if n > MAX_CHUNKS || table_bytes > file_bytes.max(FREE_TABLE_BYTES) {
        let reason = format!("is cut into {n} chunks, in a file of {file_bytes} bytes");
        return Err(node.refused(&reason, "write it again with larger chunks"));
    }
    let name = format!("chunks of {}", node.path());
    node.source().cache().chunks(&name, n, || list_chunks(node, dataset, rank, array))
}

/// Asks the library for all chunks and checks each.
fn list_chunks(node: &H5Node, dataset: &Id, rank: usize, array: &RawArray) -> Result<Array<ChunkEntry>, OpenError> {
    let file_bytes = node.file_bytes();
    let mut table = vec![ChunkEntry { address: UNALLOCATED, stored_len: 0, mask: 0 }; to_usize(n_chunks(array))];
    let mut bad = None;
    lib::visit_chunks(dataset, rank, &mut |chunk| match place(array, file_bytes, &chunk, &mut table) {
        Ok(()) => true,
        Err(reason) => {
            bad = Some(reason);
            false
        }
    })
    .map_err(|e| node.fault(&e))?;
    match bad {
        Some(reason) => Err(node.refused(&reason, "the file is damaged: copy or download it again")),
        None => Ok(table.into()),
    }
}

/// Enters one listed chunk into the table, or says what is wrong with it.
fn place(array: &RawArray, file_bytes: u64, chunk: &ListedChunk<'_>, table: &mut [ChunkEntry]) -> Result<(), String> {
    let (row, col) = match chunk.offset {
        [row] => (*row, 0),
        [row, col] => (*row, *col),
        _ => return Err("a chunk of another rank".to_owned()),
    };
    let ListedChunk { address, len_bytes, .. } = *chunk;
    if address == UNALLOCATED || row >= array.dims[0] || col >= array.dims[1] {
        return Ok(()); // never written, or left over from a larger array
    }
    let number = row / array.chunk[0] * array.dims[1].div_ceil(array.chunk[1]) + col / array.chunk[1];
    if row % array.chunk[0] != 0 || col % array.chunk[1] != 0 {
        return Err(format!("chunk {number} at element ({row}, {col}) is off the grid"));
    }
    if address.checked_add(len_bytes).is_none_or(|end| end > file_bytes) {
        return Err(format!("chunk {number} at {address}+{len_bytes} is outside the file ({file_bytes} bytes)"));
    }
    if array.pipeline.is_plain() && len_bytes != to_u64(array.pipeline.chunk_bytes) {
        return Err(format!("chunk {number} has {len_bytes} bytes, not {}", array.pipeline.chunk_bytes));
    }
    let stored_len = u32::try_from(len_bytes).map_err(|_| format!("chunk {number} has {len_bytes} bytes"))?;
    match table.get_mut(to_usize(number)) {
        Some(entry) if entry.address == UNALLOCATED => {
            *entry = ChunkEntry { address, stored_len, mask: chunk.mask };
            Ok(())
        }
        _ => Err(format!("chunk {number} is listed twice")),
    }
}

/// How a dataset is stored, without refusing anything.
///
/// # Errors
/// [`OpenError::Refused`] if the library cannot read the dataset's header.
pub fn storage_info(node: &H5Node, dataset: &Id, info: &ArrayInfo) -> Result<StorageInfo, OpenError> {
    let fault = |e: LibraryError| node.fault(&e);
    let creation = lib::creation(dataset).map_err(fault)?;
    let mut storage = StorageInfo { stored_bytes: lib::stored_bytes(dataset), ..StorageInfo::default() };
    if lib::external_files(&creation).map_err(fault)? > 0 {
        storage.refused = Some("external storage".to_owned());
    }
    match lib::storage_layout(&creation).map_err(fault)? {
        layout::CHUNKED => {
            storage.chunk = lib::chunk_extent(&creation, info.dims.len()).map_err(fault)?;
            for listed in lib::filters(&creation).map_err(fault)? {
                match Filter::from_hdf5(listed.id, &listed.values, info.elem_size.max(1)) {
                    Ok(known) => storage.filters.push(filter_name(&known, &listed)),
                    Err(reason) => {
                        storage.filters.push(format!("filter {}", listed.id));
                        storage.refused = Some(reason);
                    }
                }
            }
        }
        layout::VIRTUAL => storage.refused = Some("virtual dataset".to_owned()),
        _ => {}
    }
    Ok(storage)
}

fn filter_name(filter: &Filter, listed: &FilterInfo) -> String {
    match (filter, listed.values.first()) {
        (Filter::Deflate, Some(level)) => format!("gzip({level})"),
        _ => filter.name().to_owned(),
    }
}
