//! Finished batch files in memory.

use std::sync::Arc;

/// Something that wants to know when a lent image is closed.
pub trait OnClose: Send + Sync {
    /// A clone that [`Image::lend`] made was dropped.
    fn closed(&self);
}

/// The bytes of one finished batch file. Cloning shares them; the memory returns to its owner with the last clone.
pub struct Image {
    /// `None` only while it is dropped.
    bytes: Option<Arc<dyn AsRef<[u8]> + Send + Sync>>,
    on_close: Option<Arc<dyn OnClose>>,
}

impl Image {
    /// An image over anything that holds bytes.
    pub fn new(bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self { bytes: Some(bytes), on_close: None }
    }

    /// A clone that tells `on_close` when it and its clones are dropped.
    #[must_use]
    pub fn lend<C: OnClose + 'static>(&self, on_close: &Arc<C>) -> Self {
        Self { bytes: self.bytes.clone(), on_close: Some(Arc::clone(on_close) as Arc<dyn OnClose>) }
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], |bytes| (**bytes).as_ref())
    }

    /// True if another clone is alive: somebody has the batch open.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| Arc::strong_count(bytes) > 1)
    }
}

impl Clone for Image {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), on_close: self.on_close.clone() }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // First the share, then the word: who is woken finds the image unshared.
        self.bytes = None;
        if let Some(on_close) = &self.on_close {
            on_close.closed();
        }
    }
}
