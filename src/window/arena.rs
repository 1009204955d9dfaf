//! The arena: the memory of all batch images, one reservation that is recycled.
//!
//! Fresh pages are the most expensive part of an image (the kernel zeroes them, and a fault each 4 KiB finds them), so
//! images are carved from one anonymous mapping that is asked to consist of huge pages and is never given back: a page is
//! zeroed once in the life of a mount. Regions are handed out first-fit by address, so the low pages, which are already
//! there, are used first, and neighbouring free regions merge. An image holds exactly its own region: a reader that
//! keeps one batch open pins that batch and nothing else.
//!
//! The mapping is as long as the memory budget allows images to be, so the budget holds by construction: what does not
//! fit is not handed out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use memmap2::{Advice, MmapMut, MmapOptions};
use parking_lot::Mutex;

/// Regions start and end at multiples of this: a page, so that no two images share one.
const GRAIN: u64 = 4096;

/// Size of a huge page, to which the mapping is aligned.
const HUGE: usize = 2 << 20;

/// Called after a region came back.
type OnFree = Box<dyn Fn() + Send + Sync>;

/// One reservation of memory, see the module's description.
pub struct Arena {
    /// Keeps the pages mapped; all access goes through `base`.
    mapping: MmapMut,
    /// First byte of the usable part, aligned to [`HUGE`].
    base: *mut u8,
    capacity: u64,
    free: Mutex<FreeList>,
    on_free: OnceLock<OnFree>,
    /// Bytes that were faulted in ahead of their use, or are about to be.
    populated: AtomicUsize,
}

// SAFETY: `base` points into `mapping`, which lives as long as the arena and is never remapped. Regions handed out are
// disjoint, and each is reached only through its own `Region`.
#[allow(unsafe_code)]
unsafe impl Send for Arena {}
// SAFETY: as above; the free list has its own lock.
#[allow(unsafe_code)]
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `capacity_bytes`, rounded down to whole pages. No page is touched.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn new(capacity_bytes: u64) -> std::io::Result<Arc<Self>> {
        let capacity = capacity_bytes / GRAIN * GRAIN;
        let mut mapping = MmapOptions::new().len(crate::num::to_usize(capacity) + HUGE).no_reserve_swap().map_anon()?;
        // Without huge pages everything still works, slower.
        let _ = mapping.advise(Advice::HugePage);
        let base = mapping.as_mut_ptr();
        let shift = base.align_offset(HUGE).min(HUGE);
        let base = base.wrapping_add(shift);
        let free = Mutex::new(FreeList::new(capacity));
        Ok(Arc::new(Self { mapping, base, capacity, free, on_free: OnceLock::new(), populated: AtomicUsize::new(0) }))
    }

    /// Bytes that a region of at least `len_bytes` takes.
    #[must_use]
    pub fn region_bytes(len_bytes: u64) -> u64 {
        crate::num::align_up(len_bytes.max(1), GRAIN).unwrap_or(u64::MAX)
    }

    /// Sets what is called after each return of a region; the first one set stays.
    pub fn set_on_free(&self, on_free: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_free.set(Box::new(on_free));
    }

    /// Bytes of the reservation.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity
    }

    /// Bytes handed out.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.capacity - self.free.lock().free_bytes
    }

    /// The most bytes that were ever handed out at one time.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.free.lock().peak_used
    }

    /// A region of at least `len_bytes`, or `None` if no free one is long enough.
    #[must_use]
    pub fn alloc(self: &Arc<Self>, len_bytes: u64) -> Option<Region> {
        self.alloc_below(len_bytes, u64::MAX)
    }

    /// A region of at least `len_bytes` that was used before, or `None`.
    #[must_use]
    pub fn alloc_used(self: &Arc<Self>, len_bytes: u64) -> Option<Region> {
        let limit = self.free.lock().high_water;
        self.alloc_below(len_bytes, limit)
    }

    /// A region that ends at `limit` or before.
    fn alloc_below(self: &Arc<Self>, len_bytes: u64, limit: u64) -> Option<Region> {
        let len = Self::region_bytes(len_bytes);
        let offset = self.free.lock().take(len, limit)?;
        Some(Region { arena: Arc::clone(self), offset, len })
    }

    /// Faults in the first `len_bytes` of the arena, so that no image pays for it later, and stops early at `until`. Contents do
    /// not change, so this may run beside users; several threads share the work, and a later call goes on where earlier ones
    /// stopped. Kernels before 5.14 cannot do it, and then images pay.
    pub fn populate(&self, len_bytes: u64, until: Option<Instant>) {
        const STEP: usize = 32 << 20;
        let end = crate::num::to_usize(len_bytes.min(self.capacity));
        let shift = self.base as usize - self.mapping.as_ptr() as usize;
        while until.is_none_or(|until| Instant::now() < until) {
            let from = self.populated.fetch_add(STEP, Ordering::Relaxed);
            if from >= end
                || self.mapping.advise_range(Advice::PopulateWrite, shift + from, STEP.min(end - from)).is_err()
            {
                return;
            }
        }
    }

    /// Says that memory came back, or may be taken back from its owner.
    fn wake(&self) {
        if let Some(on_free) = self.on_free.get() {
            on_free();
        }
    }

    fn give_back(&self, offset: u64, len: u64) {
        self.free.lock().put(offset, len);
        self.wake();
    }
}

impl super::image::OnClose for Arena {
    fn closed(&self) {
        self.wake();
    }
}

/// A run of bytes of the arena, given back when dropped.
pub struct Region {
    arena: Arc<Arena>,
    offset: u64,
    len: u64,
}

impl Region {
    /// Address of the first byte. Several threads write disjoint parts of one region through it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.arena.base.wrapping_add(crate::num::to_usize(self.offset))
    }

    /// Length in bytes, a multiple of the page size.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// The bytes. Never-used ones are 0, recycled ones hold an older image.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region lies inside the mapping and belongs to this `Region` alone; `&self` forbids writers, except
        // those of `as_ptr`, whose users publish a region only after the last write (an atomic release).
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.as_ptr(), crate::num::to_usize(self.len))
        }
    }

    /// The bytes, for the only user.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes this the only access.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.as_ptr(), crate::num::to_usize(self.len))
        }
    }

    /// Gives back all whole pages behind the first `len_bytes`.
    pub fn truncate(&mut self, len_bytes: u64) {
        let keep = Arena::region_bytes(len_bytes).min(self.len);
        if keep < self.len {
            let rest = self.len - keep;
            self.len = keep;
            self.arena.give_back(self.offset + keep, rest);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.arena.give_back(self.offset, self.len);
    }
}

/// Free runs by offset; neighbours are merged, so two runs never touch.
struct FreeList {
    runs: BTreeMap<u64, u64>,
    free_bytes: u64,
    capacity: u64,
    peak_used: u64,
    /// End of the highest run that was ever taken.
    high_water: u64,
}

impl FreeList {
    fn new(capacity: u64) -> Self {
        let runs = if capacity > 0 { BTreeMap::from([(0, capacity)]) } else { BTreeMap::new() };
        Self { runs, free_bytes: capacity, capacity, peak_used: 0, high_water: 0 }
    }

    /// First fit by address, ending at `limit` or before.
    fn take(&mut self, len: u64, limit: u64) -> Option<u64> {
        let below = self.runs.range(..limit);
        let (&offset, &run) = below.into_iter().find(|&(&offset, &run)| run >= len && offset + len <= limit)?;
        self.high_water = self.high_water.max(offset + len);
        self.runs.remove(&offset);
        if run > len {
            self.runs.insert(offset + len, run - len);
        }
        self.free_bytes -= len;
        self.peak_used = self.peak_used.max(self.capacity - self.free_bytes);
        Some(offset)
    }

    fn put(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&before, &run)) = self.runs.range(..offset).next_back()
            && before + run == offset
        {
            self.runs.remove(&before);
            start = before;
        }
        if let Some(&run) = self.runs.get(&end) {
            self.runs.remove(&end);
            end += run;
        }
        self.runs.insert(start, end - start);
        self.free_bytes += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn regions_come_back_and_merge() {
        let arena = Arena::new(64 * GRAIN).unwrap();
        let a = arena.alloc(10 * GRAIN).unwrap();
        let mut b = arena.alloc(20 * GRAIN - 5).unwrap();
        assert!(arena.alloc(40 * GRAIN).is_none());
        b.truncate(GRAIN + 1);
        assert_eq!(arena.used_bytes(), 12 * GRAIN);
        drop(a);
        drop(b);
        assert_eq!(arena.used_bytes(), 0);
        assert!(arena.alloc(64 * GRAIN).is_some(), "free runs merged into one");
        assert_eq!(arena.peak_bytes(), 64 * GRAIN);
    }

    #[test]
    fn used_memory_is_told_from_fresh() {
        let arena = Arena::new(8 * GRAIN).unwrap();
        assert!(arena.alloc_used(1).is_none());
        let a = arena.alloc(2 * GRAIN).unwrap();
        drop(arena.alloc(GRAIN));
        let b = arena.alloc_used(GRAIN).unwrap();
        assert_eq!(b.offset, 2 * GRAIN);
        assert!(arena.alloc_used(1).is_none());
        drop((a, b));
        assert!(arena.alloc_used(4 * GRAIN).is_none() && arena.alloc_used(3 * GRAIN).is_some());
    }

    #[test]
    fn a_freed_region_wakes_the_owner() {
        let arena = Arena::new(8 * GRAIN).unwrap();
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let seen = Arc::clone(&count);
        arena.set_on_free(move || {
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        drop(arena.alloc(1));
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    proptest! {
        /// Whatever is taken and given back: regions never overlap, and nothing is lost.
        #[test]
        fn regions_are_disjoint(ops in prop::collection::vec((any::<bool>(), 1_u64..40), 1..200)) {
            let arena = Arena::new(100 * GRAIN).unwrap();
            let mut live: Vec<Region> = Vec::new();
            for (take, n) in ops {
                if take {
                    if let Some(r) = arena.alloc(n * GRAIN) {
                        for l in &live {
                            prop_assert!(r.offset + r.len <= l.offset || l.offset + l.len <= r.offset);
                        }
                        live.push(r);
                    }
                } else if !live.is_empty() {
                    let at = crate::num::to_usize(n) % live.len();
                    live.swap_remove(at);
                }
                prop_assert_eq!(arena.used_bytes(), live.iter().map(|r| r.len).sum::<u64>());
            }
        }
    }
}
