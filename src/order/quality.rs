//! How well an order mixes, predicted from its blocks. For reports only: nothing here enters the order.
//!
//! A batch of m rows is drawn from a window that holds the rows of B distinct blocks. In the worst case all rows of a block
//! share a label, so the labels of a batch are m draws from B draws from the label distribution p. To first order each of
//! the two draws costs (K-1)/(2 ln 2 * draws) bits of mean entropy for K classes, and blocks of unequal size count as
//! B/(1 + cv^2) equal ones. The first loss is the one that true random sampling has as well. (Measured against simulations
//! and published runs; the second term predicts the loss against true random better than the sum predicts the entropy,
//! and the sum fails for more classes than about a quarter of m or B.)

use std::f64::consts::LN_2;

use super::blocks::Blocks;
use super::cuts::Cuts;

/// What decides how well an order mixes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockStats {
    /// Blocks of an epoch, at phase 0.
    pub n_blocks: u64,
    /// Mean rows of a block.
    pub mean_rows: f64,
    /// Standard deviation of the rows of a block, divided by their mean.
    pub cv: f64,
    /// Mean distinct blocks in a window, at most `n_blocks`.
    pub blocks_per_window: f64,
    /// True if one window holds the whole epoch, which is then in true random order.
    pub one_window: bool,
}

impl BlockStats {
    /// Statistics of `blocks` in windows of `window_rows` rows. Takes a pass over the block sizes.
    #[must_use]
    pub fn new(blocks: &Blocks, window_rows: u64) -> Self {
        let cuts = Cuts::new(blocks, |_, _| 0);
        let squares: u128 = (0..cuts.n_blocks()).map(|block| u128::from(cuts.len_of(blocks, block)).pow(2)).sum();
        let (n_rows, n_blocks) = (blocks.n_rows() as f64, blocks.n_blocks().max(1) as f64);
        let mean_rows = n_rows / n_blocks;
        // E[x^2] / E[x]^2 = 1 + cv^2; rounding may leave it below 1.
        let spread = if n_rows > 0.0 { squares as f64 * n_blocks / (n_rows * n_rows) - 1.0 } else { 0.0 };
        let blocks_per_window = if n_rows > 0.0 { (window_rows as f64 / mean_rows).min(n_blocks) } else { 0.0 };
        Self {
            n_blocks: blocks.n_blocks(),
            mean_rows,
            cv: spread.max(0.0).sqrt(),
            blocks_per_window,
            one_window: window_rows >= blocks.n_rows(),
        }
    }

    /// B of the quality law: the number of equal blocks that would mix as well as a window's unequal ones.
    #[must_use]
    pub fn effective_blocks(&self) -> f64 {
        self.blocks_per_window / (1.0 + self.cv * self.cv)
    }

    /// Predicted loss of mean batch entropy against true random order, in bits, for a label with `n_classes` classes.
    #[must_use]
    pub fn loss_bits(&self, n_classes: u64) -> f64 {
        // No label has more bits than its classes make, so no more can be lost.
        let most = (n_classes.max(1) as f64).log2();
        if self.one_window { 0.0 } else { loss_bits(n_classes, self.effective_blocks()).min(most) }
    }
}

/// (K-1)/(2 ln 2 * draws): the entropy in bits that a sample of `draws` lacks on average, to first order.
#[must_use]
pub fn loss_bits(n_classes: u64, draws: f64) -> f64 {
    n_classes.saturating_sub(1) as f64 / (2.0 * LN_2 * draws)
}

/// Predicted mean entropy of a batch in bits, for a label of entropy `label_bits` and `n_classes` classes, batches of
/// `batch_size` rows and `effective_blocks` = B. `None` where the law does not hold: more classes than a quarter of m or B.
#[must_use]
pub fn mean_entropy_bits(label_bits: f64, n_classes: u64, batch_size: u32, effective_blocks: f64) -> Option<f64> {
    let batch_size = f64::from(batch_size);
    let holds = 4.0 * n_classes as f64 <= batch_size.min(effective_blocks);
    holds.then(|| label_bits - loss_bits(n_classes, batch_size) - loss_bits(n_classes, effective_blocks))
}

#[cfg(test)]
mod tests {
    use super::super::blocks::SourceRows;
    use super::*;

    fn near(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance, "{found} is not {expected}");
    }

    #[test]
    fn law_agrees_with_simulations() {
        // Simulated mean entropies, 14 classes, 3.807 bits, sorted rows: (m, block rows, f, bits).
        for (m, block_rows, f, bits) in [
            (64, 16, 64, 3.619),
            (64, 64, 256, 3.616),
            (256, 16, 64, 3.763),
            (256, 64, 64, 3.736),
            (512, 16, 16, 3.773),
        ] {
            let sources = [SourceRows { rows: 0..1 << 20, first_rows: None, x_bytes: 0 }];
            let stats = BlockStats::new(&Blocks::fixed(block_rows, &sources).unwrap(), m * f);
            let found = mean_entropy_bits(3.807, 14, m as u32, stats.effective_blocks()).unwrap();
            near(found, bits, 0.009);
        }
    }

    #[test]
    fn loss_agrees_with_simulations() {
        for (blocks, low, high) in [(1024.0, 0.0087, 0.0099), (671.0, 0.0134, 0.0141), (256.0, 0.036, 0.039)] {
            let loss = loss_bits(14, blocks);
            assert!((low..=high).contains(&loss), "{loss}");
        }
        assert_eq!(mean_entropy_bits(8.562, 378, 256, 1024.0), None);
    }

    #[test]
    fn unequal_blocks_count_less() {
        let first_rows = (0..1000).map(|i| i * 20 + (i % 2) * 10).collect();
        let sources = [SourceRows { rows: 0..20_000, first_rows: Some(first_rows), x_bytes: 0 }];
        let stats = BlockStats::new(&Blocks::auto(&sources).unwrap(), 2000);
        assert_eq!((stats.n_blocks, stats.one_window), (1000, false));
        near(stats.mean_rows, 20.0, 1e-12);
        near(stats.cv, 0.5, 1e-12);
        near(stats.blocks_per_window, 100.0, 1e-9);
        near(stats.effective_blocks(), 80.0, 1e-9);
    }

    #[test]
    fn one_window_is_true_random() {
        let sources = [SourceRows { rows: 0..100, first_rows: None, x_bytes: 0 }];
        let stats = BlockStats::new(&Blocks::fixed(7, &sources).unwrap(), 128);
        assert_eq!((stats.n_blocks, stats.blocks_per_window, stats.loss_bits(14)), (15, 15.0, 0.0));
        let empty = BlockStats::new(&Blocks::fixed(7, &[]).unwrap(), 128);
        assert_eq!((empty.n_blocks, empty.cv, empty.blocks_per_window), (0, 0.0, 0.0));
    }
}
