//! Why an order is refused.

/// Why an order cannot be built. Every message is one line that names the flag to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The sources hold no row.
    #[error("there are no rows to serve: all sources are empty")]
    NoRows,
    /// More rows than row ids can number.
    #[error("{n_rows} rows are more than the {limit} that an order can number")]
    TooManyRows {
        /// Rows asked for.
        n_rows: u64,
        /// The largest number.
        limit: u64,
    },
    /// Batches of no rows.
    #[error("--batch-size 0: a batch needs at least one row")]
    ZeroBatchSize,
    /// Windows of no batches.
    #[error("--fetch-factor 0: a window needs at least one batch")]
    ZeroFetchFactor,
    /// Blocks of no rows.
    #[error("--block-size 0: a block needs at least one row")]
    ZeroBlockSize,
    /// `--tail drop` with fewer rows than a batch.
    #[error(
        "--tail drop leaves no batch: {n_rows} rows are fewer than --batch-size {batch_size}; lower --batch-size or use --tail keep"
    )]
    NothingLeft {
        /// Rows there are.
        n_rows: u64,
        /// Rows of a batch.
        batch_size: u32,
    },
    /// A window too large for its list of rows.
    #[error(
        "--batch-size {batch_size} times --fetch-factor {fetch_factor} makes windows of {window_rows} rows, more than {limit}; lower --fetch-factor"
    )]
    WindowTooLarge {
        /// Rows of a batch.
        batch_size: u32,
        /// Batches of a window.
        fetch_factor: u32,
        /// Rows of the largest window.
        window_rows: u64,
        /// The largest number.
        limit: u64,
    },
    /// More batches than an epoch can number.
    #[error("--batch-size {batch_size} cuts {n_rows} rows into more than {limit} batches; raise --batch-size")]
    TooManyBatches {
        /// Rows there are.
        n_rows: u64,
        /// Rows of a batch.
        batch_size: u32,
        /// The largest number.
        limit: u64,
    },
    /// More blocks than the table of an epoch can number.
    #[error("the rows make {n_blocks} blocks, more than {limit}; raise --block-size")]
    TooManyBlocks {
        /// Blocks there would be.
        n_blocks: u64,
        /// The largest number.
        limit: u64,
    },
    /// A source does not begin where the one before it ends.
    #[error("source {source_index} begins at row {found}, expected {expected}")]
    Sources {
        /// Position of the source.
        source_index: usize,
        /// Where it begins.
        found: u64,
        /// Where the source before it ends.
        expected: u64,
    },
    /// The first rows of a source's chunks do not partition its rows.
    #[error(
        "source {source_index}: its chunk borders are not ascending rows of the source from the first on (entry {entry})"
    )]
    Borders {
        /// Position of the source.
        source_index: usize,
        /// The first entry that is wrong.
        entry: usize,
    },
    /// The blocks are those of other rows.
    #[error("the blocks hold {found} rows, but there are {expected}")]
    RowCount {
        /// Rows of the blocks.
        found: u64,
        /// Rows of the order.
        expected: u64,
    },
    /// A share that does not exist, such as `rank-4-of-4`.
    #[error("{kind}-{index}-of-{parts} does not exist: there are {parts}, counted from 0")]
    NoSuchShare {
        /// `rank` or `host`.
        kind: &'static str,
        /// Its number.
        index: u32,
        /// How many there are.
        parts: u32,
    },
}
