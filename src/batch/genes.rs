//! A choice of genes: which columns of X a batch keeps, and in which order.

/// Marks a gene that is dropped.
const DROPPED: u32 = u32::MAX;

/// A map from the source's columns to the batch's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Genes {
    map: Vec<u32>,
    n_out: u32,
    monotone: bool,
}

impl Genes {
    /// From the chosen source columns, in the order of the batch's columns; `None` for a column that no source gene fills (it is
    /// always zero). Every source column may be chosen once; `None` is returned if one is chosen twice or does not exist.
    #[must_use]
    pub fn new(n_source_cols: usize, chosen: &[Option<usize>]) -> Option<Self> {
        let n_out = u32::try_from(chosen.len()).ok().filter(|&n| n < DROPPED)?;
        let mut map = vec![DROPPED; n_source_cols];
        let (mut last, mut monotone) = (None, true);
        for (out, source) in (0..n_out).zip(chosen) {
            let Some(source) = *source else { continue };
            let slot = map.get_mut(source)?;
            if *slot != DROPPED {
                return None;
            }
            *slot = out;
            monotone &= last.is_none_or(|last| last < source);
            last = Some(source);
        }
        Some(Self { map, n_out, monotone })
    }

    /// The batch column of a source column, `None` if the gene is dropped.
    #[must_use]
    pub fn get(&self, source_col: u32) -> Option<u32> {
        self.map.get(source_col as usize).copied().filter(|&out| out != DROPPED)
    }

    /// Columns of the batch.
    #[must_use]
    pub fn n_out(&self) -> u32 {
        self.n_out
    }

    /// True if the chosen genes keep their order, so that sorted rows stay sorted.
    #[must_use]
    pub fn is_monotone(&self) -> bool {
        self.monotone
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        (self.map.len() * 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_map_and_drop() {
        let genes = Genes::new(5, &[Some(3), None, Some(0)]).unwrap();
        assert_eq!((0..5).map(|g| genes.get(g)).collect::<Vec<_>>(), [Some(2), None, None, Some(0), None]);
        assert_eq!((genes.n_out(), genes.is_monotone()), (3, false));
        assert!(Genes::new(5, &[Some(1), None, Some(4)]).unwrap().is_monotone());
        assert_eq!(Genes::new(5, &[Some(1), Some(1)]), None, "a gene twice");
        assert_eq!(Genes::new(5, &[Some(5)]), None, "a gene that does not exist");
        assert_eq!(genes.get(99), None);
    }
}
