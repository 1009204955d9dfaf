//! What makes one dataset of several sources: a gene axis, and columns of `obs`.
//!
//! Nothing here knows a container. Sources are added one after the other, in order, and are named by their numbers in faults; who
//! opened them knows their paths.

pub mod columns;
pub mod genes;

pub use columns::{ColumnFault, ColumnJoiner};
pub use genes::{GeneFault, GeneFlags, GeneLists, Join, Loss};
