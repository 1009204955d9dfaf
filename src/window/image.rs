//! Finished batch files in memory.

use std::sync::Arc;

/// The bytes of one finished batch file. Cloning shares them; the memory returns to its owner with the last clone.
#[derive(Clone)]
pub struct Image {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
}

impl Image {
    /// An image over anything that holds bytes.
    pub fn new(bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self { bytes }
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// True if another clone is alive: somebody has the batch open.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.bytes) > 1
    }
}
