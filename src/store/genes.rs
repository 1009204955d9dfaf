//! Which columns of a source become which columns of a batch.
//!
//! Two things move columns: joining sources whose genes differ, and a choice of genes. Both are maps from column to column, so that one
//! [`GeneMap`] per distinct list of genes tells where a stored value goes, or that it is dropped. Sources with equal lists share one, and sources whose
//! columns stay where they are have none and cost nothing.

use std::sync::Arc;

use crate::num::to_u64;

/// Marks a column that is dropped.
const DROPPED: u32 = u32::MAX;

/// A map from the columns of a source to those of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneMap {
    map: Vec<u32>,
    n_out: u32,
    monotone: bool,
    drops: bool,
}

impl GeneMap {
    /// From the chosen source columns, in the order of the batch's columns; `None` for a column that no source gene fills (it is
    /// always zero). Every source column may be chosen once; `None` is returned if one is chosen twice or does not exist.
    #[must_use]
    pub fn new(n_source_cols: usize, chosen: &[Option<usize>]) -> Option<Self> {
        let n_out = u32::try_from(chosen.len()).ok().filter(|&n| n < DROPPED)?;
        let mut map = vec![DROPPED; n_source_cols];
        for (out, source) in (0..n_out).zip(chosen) {
            let Some(source) = *source else { continue };
            let slot = map.get_mut(source)?;
            if *slot != DROPPED {
                return None;
            }
            *slot = out;
        }
        Some(Self::finish(map, n_out))
    }

    /// From the batch's column of each source column, `None` if it is dropped. No two may have the same one.
    pub(super) fn from_targets(targets: impl Iterator<Item = Option<u32>>, n_out: u32) -> Self {
        Self::finish(targets.map(|to| to.unwrap_or(DROPPED)).collect(), n_out)
    }

    fn finish(map: Vec<u32>, n_out: u32) -> Self {
        let drops = map.contains(&DROPPED);
        let monotone = map.iter().filter(|&&out| out != DROPPED).is_sorted();
        Self { map, n_out, monotone, drops }
    }

    /// This map, and then `next` on its columns.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        Self::from_targets(self.map.iter().map(|&out| next.get(out)), next.n_out)
    }

    /// The batch column of a source column, `None` if it is dropped.
    #[must_use]
    #[inline]
    pub fn get(&self, source_col: u32) -> Option<u32> {
        self.map.get(source_col as usize).copied().filter(|&out| out != DROPPED)
    }

    /// Columns of the batch.
    #[must_use]
    pub fn n_out(&self) -> u32 {
        self.n_out
    }

    /// Source columns that are kept.
    #[must_use]
    pub fn n_kept(&self) -> usize {
        self.map.iter().filter(|&&out| out != DROPPED).count()
    }

    /// True if the kept columns keep their order, so that sorted rows stay sorted.
    #[must_use]
    pub fn is_monotone(&self) -> bool {
        self.monotone
    }

    /// The new number of every column, if none is dropped and all keep their order: then indices are renumbered on their way into the
    /// batch, and rows need nothing else.
    #[must_use]
    pub fn renumbering(&self) -> Option<&[u32]> {
        (self.monotone && !self.drops).then_some(&self.map)
    }

    /// True if every column stays where it is and there are no others.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.map.len() == self.n_out as usize && self.monotone && !self.drops
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        to_u64(self.map.len() * 4)
    }
}

/// The gene axis of batches: where the columns of every source go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedGenes {
    /// Columns of a batch.
    pub n_out: u32,
    /// True if genes were chosen, not only joined: batches then tell the sum of each row as it is stored.
    pub is_choice: bool,
    /// By source: which of the maps is its own.
    list_of_source: Arc<[u32]>,
    /// By list of genes; `None` if the columns stay where they are.
    maps: Vec<Option<GeneMap>>,
}

impl ServedGenes {
    /// From the map of each distinct list of genes (`None`: nothing moves), and the list of each source.
    #[must_use]
    pub fn new(maps: Vec<Option<GeneMap>>, list_of_source: Arc<[u32]>, n_out: u32, is_choice: bool) -> Self {
        Self { n_out, is_choice, list_of_source, maps }
    }

    /// The same, with some of the columns chosen from it.
    #[must_use]
    pub fn then(&self, choice: &GeneMap) -> Self {
        let maps = self.maps.iter().map(|map| Some(map.as_ref().map_or_else(|| choice.clone(), |m| m.then(choice))));
        let maps = maps.map(|map| map.filter(|map| !map.is_identity())).collect();
        Self::new(maps, Arc::clone(&self.list_of_source), choice.n_out(), true)
    }

    /// Where the columns of a source go; `None` if they stay where they are.
    #[must_use]
    pub fn of(&self, source: usize) -> Option<&GeneMap> {
        self.maps.get(*self.list_of_source.get(source)? as usize)?.as_ref()
    }

    /// As [`ServedGenes::of`], for maps that are still to be applied when the rows of a batch are complete: those that drop columns or
    /// permute them.
    #[must_use]
    pub fn unsettled(&self, source: usize) -> Option<&GeneMap> {
        self.of(source).filter(|map| map.renumbering().is_none())
    }

    /// True if some source has a map that [`ServedGenes::unsettled`] returns.
    #[must_use]
    pub fn any_unsettled(&self) -> bool {
        self.maps.iter().flatten().any(|map| map.renumbering().is_none())
    }

    /// True if no column of any source moves.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.maps.iter().all(Option::is_none)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let maps: u64 = self.maps.iter().flatten().map(GeneMap::resident_bytes).sum();
        maps + to_u64(self.list_of_source.len() * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_map_and_drop() {
        let genes = GeneMap::new(5, &[Some(3), None, Some(0)]).unwrap();
        assert_eq!((0..5).map(|g| genes.get(g)).collect::<Vec<_>>(), [Some(2), None, None, Some(0), None]);
        assert_eq!((genes.n_out(), genes.is_monotone(), genes.n_kept()), (3, false, 2));
        assert!(GeneMap::new(5, &[Some(1), None, Some(4)]).unwrap().is_monotone());
        assert_eq!(GeneMap::new(5, &[Some(1), Some(1)]), None, "a gene twice");
        assert_eq!(GeneMap::new(5, &[Some(5)]), None, "a gene that does not exist");
        assert_eq!(genes.get(99), None);
    }

    #[test]
    fn maps_are_applied_one_after_the_other() {
        let join = GeneMap::from_targets([Some(2), None, Some(0)].into_iter(), 4);
        let choice = GeneMap::new(4, &[Some(0), Some(3), Some(2)]).unwrap();
        let both = join.then(&choice);
        assert_eq!((0..3).map(|g| both.get(g)).collect::<Vec<_>>(), [Some(2), None, Some(0)]);
        let served = ServedGenes::new(vec![None, Some(join)], Arc::new([0, 1, 0]), 4, false).then(&choice);
        assert_eq!((served.of(0), served.of(1), served.of(2)), (Some(&choice), Some(&both), Some(&choice)));
        assert!(served.is_choice && !served.is_identity());
    }

    #[test]
    fn a_renumbering_neither_drops_nor_permutes() {
        let map = |to: &[Option<u32>]| GeneMap::from_targets(to.iter().copied(), 9);
        assert_eq!(map(&[Some(1), Some(5)]).renumbering(), Some(&[1, 5][..]));
        assert_eq!(map(&[Some(5), Some(1)]).renumbering(), None);
        assert_eq!(map(&[Some(1), None]).renumbering(), None);
        assert!(!map(&[Some(0), Some(1)]).is_identity(), "there are further columns");
        assert!(GeneMap::from_targets((0..3).map(Some), 3).is_identity());
    }
}
