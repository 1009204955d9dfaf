//! `shufflefs` presents a dataset as a read-only directory tree in which every epoch is a directory of shuffled batch
//! files.
//!
//! Data flows one way, and a module knows only those to its right:
//!
//! ```text
//! cli -> mount -> view -> window -> store -> codec
//!                  |  \-> batch      (layouts, encoders)
//!                  \----> order      (integers only)
//! ```
//!
//! * [`order`]: which row is where in an epoch. Integers only, no I/O.
//! * [`codec`]: bounded decompressors that fill a caller's slice exactly or fail.
//! * [`store`]: what the sources hold and where its bytes lie; the only module that knows HDF5.
//! * [`batch`]: the byte map of one batch file, and the encoders of the formats.
//! * [`window`]: the engine: plan, coalesced reads, parallel decode, scatter into batch images, memory budget.
//! * [`view`]: the tree as plain types: names, inodes, attributes, directory pages, open and read.
//! * [`mount`]: the FUSE adapter, the session, the daemon. The only module that knows `fuser`.
//! * [`cli`]: what was typed, made into a validated configuration, and run.

pub mod batch;
pub mod cli;
pub mod codec;
pub mod dtype;
pub mod mount;
pub mod num;
pub mod order;
pub mod store;
pub mod view;
pub mod window;
