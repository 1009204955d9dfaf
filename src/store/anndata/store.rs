//! The [`Store`](crate::store::Store) over opened AnnData sources.

/// An AnnData dataset.
pub struct AnnDataStore {}
