//! AnnData in HDF5.
