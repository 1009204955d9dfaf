//! The gene axes of several sources, joined into one.
//!
//! Lists of genes that are equal are kept once, by their digest, since thousands of files of one atlas have the same. As soon as a second
//! list turns up, names are numbered, and lists become numbers: joining is then counting. The order of the joined genes is
//! that of `anndata.concat`: of an inner join that of the first source, of an outer join the names sorted by code point. Equal lists
//! are never touched, whatever the join, and then a name may occur more than once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::store::column::Strings;
use crate::store::genes::{GeneMap, ServedGenes};

/// Most names that an error lists.
const LISTED_NAMES: usize = 3;

/// Which genes are served where sources differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Join {
    /// Those that every source has, in the order of the first.
    #[default]
    Inner,
    /// Those that any source has, sorted by name; what a source lacks is zero in its rows.
    Outer,
    /// Sources with other genes than the first are refused; another order of the same genes is not.
    Exact,
}

impl Join {
    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inner => "inner",
            Self::Outer => "outer",
            Self::Exact => "exact",
        }
    }
}

/// The distinct lists of genes of the sources.
#[derive(Debug, Default)]
pub struct GeneLists {
    /// The first list, as it came.
    first: Strings,
    lists: Vec<List>,
    by_digest: HashMap<[u8; 32], u32>,
    list_of_source: Vec<u32>,
    /// Number of each name; empty as long as there is one list.
    numbers: HashMap<Box<str>, u32>,
}

/// One list of genes.
#[derive(Debug)]
struct List {
    /// The first source that has it.
    source: usize,
    /// Numbers of the names; empty as long as there is one list.
    numbers: Vec<u32>,
    n_genes: usize,
}

/// Why lists of genes cannot be joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GeneFault {
    /// A name occurs more than once, so that it does not tell which column is meant.
    Twice {
        /// The source.
        source: usize,
        /// The name.
        name: String,
    },
    /// The genes of the sources up to this one have none in common.
    Disjoint {
        /// The source.
        source: usize,
        /// A gene of the first source, and one of this.
        examples: Vec<String>,
    },
    /// A source has other genes than the first.
    Differs {
        /// The source.
        source: usize,
        /// Genes that one of both has and the other lacks.
        n: usize,
        /// Some of them.
        examples: Vec<String>,
    },
    /// More genes than a column index can number.
    TooMany {
        /// How many.
        n: usize,
    },
}

/// One gene axis for all sources.
#[derive(Debug)]
pub struct JoinedGenes {
    /// Names, in the order of the columns.
    pub names: Strings,
    /// Where the columns of each source go.
    pub served: ServedGenes,
    /// What the join did to the genes, if they differ.
    pub loss: Option<Loss>,
}

/// What an inner or outer join cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Genes of all sources together.
    pub n_union: usize,
    /// Genes that are served.
    pub n_joined: usize,
    /// The source that differs most from what is served: it loses, or lacks, most genes.
    pub source: usize,
    /// How many genes it loses (inner) or lacks (outer).
    pub n_source: usize,
}

impl GeneLists {
    /// Adds the genes of the next source; returns the number of its list.
    pub fn add(&mut self, names: Strings) -> u32 {
        let source = self.list_of_source.len();
        let next = u32::try_from(self.lists.len()).unwrap_or(u32::MAX);
        let list = *self.by_digest.entry(names.digest()).or_insert(next);
        self.list_of_source.push(list);
        if list == next {
            let mut list = List { source, numbers: Vec::new(), n_genes: names.len() };
            if self.lists.is_empty() {
                self.first = names;
            } else {
                if let [first] = self.lists.as_mut_slice() {
                    first.numbers = numbered(&mut self.numbers, &self.first);
                }
                list.numbers = numbered(&mut self.numbers, &names);
            }
            self.lists.push(list);
        }
        list
    }

    /// Number of genes of the list that a source has.
    #[must_use]
    pub fn n_genes(&self, source: usize) -> usize {
        let list = self.list_of_source.get(source).and_then(|&list| self.lists.get(list as usize));
        list.map_or(0, |list| list.n_genes)
    }

    /// Joins the lists.
    ///
    /// # Errors
    /// [`GeneFault`].
    pub fn join(self, how: Join) -> Result<JoinedGenes, GeneFault> {
        let list_of_source: Arc<[u32]> = self.list_of_source.into();
        if self.lists.len() < 2 {
            let n_out = u32::try_from(self.first.len()).map_err(|_| GeneFault::TooMany { n: self.first.len() })?;
            let served = ServedGenes::new(vec![None], list_of_source, n_out, false);
            return Ok(JoinedGenes { names: self.first, served, loss: None });
        }
        let names = by_number(&self.numbers);
        refuse_repeats(&self.lists, &names)?;
        let joined = match how {
            Join::Inner => inner(&self.lists, &names)?,
            Join::Outer => outer(&self.lists, &names),
            Join::Exact => exact(&self.lists, &names)?,
        };
        let n_out = u32::try_from(joined.len()).ok().filter(|&n| i32::try_from(n).is_ok());
        let n_out = n_out.ok_or(GeneFault::TooMany { n: joined.len() })?;
        let mut place = vec![None; names.len()];
        for (number, to) in joined.iter().zip(0..n_out) {
            place[*number as usize] = Some(to);
        }
        let maps: Vec<Option<GeneMap>> = self
            .lists
            .iter()
            .map(|list| GeneMap::from_targets(list.numbers.iter().map(|&number| place[number as usize]), n_out))
            .map(|map| Some(map).filter(|map| !map.is_identity()))
            .collect();
        let loss = loss(&self.lists, names.len(), joined.len());
        let names = joined.iter().map(|&number| names[number as usize]).collect();
        Ok(JoinedGenes { names, served: ServedGenes::new(maps, list_of_source, n_out, false), loss })
    }
}

/// The numbers of `names`; new ones are given to names not seen before.
fn numbered(numbers: &mut HashMap<Box<str>, u32>, names: &Strings) -> Vec<u32> {
    let number = |name: &str| {
        if let Some(&number) = numbers.get(name) {
            return number;
        }
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        numbers.insert(name.into(), next);
        next
    };
    names.iter().map(number).collect()
}

/// The names by their numbers.
fn by_number(numbers: &HashMap<Box<str>, u32>) -> Vec<&str> {
    let mut names = vec![""; numbers.len()];
    for (name, &number) in numbers {
        names[number as usize] = name;
    }
    names
}

fn refuse_repeats(lists: &[List], names: &[&str]) -> Result<(), GeneFault> {
    let mut seen_in = vec![usize::MAX; names.len()];
    for (i, list) in lists.iter().enumerate() {
        for &number in &list.numbers {
            if std::mem::replace(&mut seen_in[number as usize], i) == i {
                return Err(GeneFault::Twice { source: list.source, name: names[number as usize].to_owned() });
            }
        }
    }
    Ok(())
}

fn inner(lists: &[List], names: &[&str]) -> Result<Vec<u32>, GeneFault> {
    let mut n_lists = vec![0_usize; names.len()];
    let first = lists.first().map_or(&[][..], |list| &list.numbers);
    for (i, list) in lists.iter().enumerate() {
        list.numbers.iter().for_each(|&number| n_lists[number as usize] += 1);
        if !first.iter().any(|&number| n_lists[number as usize] > i) {
            let example = |list: &[u32]| list.first().map(|&number| names[number as usize].to_owned());
            let examples = [first, &list.numbers].into_iter().filter_map(example).collect();
            return Err(GeneFault::Disjoint { source: list.source, examples });
        }
    }
    Ok(first.iter().copied().filter(|&number| n_lists[number as usize] == lists.len()).collect())
}

fn outer(lists: &[List], names: &[&str]) -> Vec<u32> {
    // A list without genes leaves the order of the others alone.
    let mut filled = lists.iter().filter(|list| list.n_genes > 0);
    if let (Some(only), None) = (filled.next(), filled.next()) {
        return only.numbers.clone();
    }
    let mut all: Vec<u32> = (0..).take(names.len()).collect();
    all.sort_unstable_by_key(|&number| names[number as usize]);
    all
}

fn exact(lists: &[List], names: &[&str]) -> Result<Vec<u32>, GeneFault> {
    let Some((first, others)) = lists.split_first() else { return Ok(Vec::new()) };
    for list in others {
        let mut here = vec![0_i8; names.len()];
        first.numbers.iter().for_each(|&number| here[number as usize] += 1);
        list.numbers.iter().for_each(|&number| here[number as usize] -= 1);
        let differing = || here.iter().zip(names).filter(|&(&difference, _)| difference != 0);
        let n = differing().count();
        if n > 0 {
            let examples = differing().take(LISTED_NAMES).map(|(_, &name)| name.to_owned()).collect();
            return Err(GeneFault::Differs { source: list.source, n, examples });
        }
    }
    Ok(first.numbers.clone())
}

fn loss(lists: &[List], n_union: usize, n_joined: usize) -> Option<Loss> {
    let most = lists.iter().max_by_key(|list| list.n_genes.abs_diff(n_joined))?;
    let n_source = most.n_genes.abs_diff(n_joined);
    let differs = n_source > 0 || n_joined != n_union;
    differs.then_some(Loss { n_union, n_joined, source: most.source, n_source })
}

/// Flags of genes that several sources have, joined: every gene has one flag.
#[derive(Debug, Default)]
pub struct GeneFlags {
    /// Distinct flags per list of genes: the first source that has them, and the flags.
    flags: Vec<(usize, Vec<bool>)>,
    seen: HashSet<(u32, [u8; 32])>,
}

/// Two sources that flag a gene differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagsDiffer {
    /// A source that says no, or yes.
    pub first: usize,
    /// One that says the opposite.
    pub second: usize,
    /// The first such gene, a column of the joined axis.
    pub gene: usize,
}

impl GeneFlags {
    /// Adds the flags of a source that has this list of genes.
    pub fn add(&mut self, source: usize, list: u32, flags: Vec<bool>) {
        let bytes: Vec<u8> = flags.iter().map(|&flag| u8::from(flag)).collect();
        if self.seen.insert((list, *blake3::hash(&bytes).as_bytes())) {
            self.flags.push((source, flags));
        }
    }

    /// One flag per joined gene.
    ///
    /// # Errors
    /// [`FlagsDiffer`] if two sources do not agree about a gene.
    pub fn join(self, genes: &ServedGenes) -> Result<Option<Vec<bool>>, FlagsDiffer> {
        if self.flags.is_empty() {
            return Ok(None);
        }
        let mut joined: Vec<Option<(usize, bool)>> = vec![None; genes.n_out as usize];
        for (source, flags) in self.flags {
            let map = genes.of(source);
            for (col, flag) in (0_u32..).zip(flags) {
                let Some(to) = map.map_or(Some(col), |map| map.get(col)) else { continue };
                match joined.get_mut(to as usize) {
                    Some(Some((first, other))) if *other != flag => {
                        return Err(FlagsDiffer { first: *first, second: source, gene: to as usize });
                    }
                    Some(place @ None) => *place = Some((source, flag)),
                    _ => {}
                }
            }
        }
        Ok(Some(joined.into_iter().map(|flag| flag.is_some_and(|(_, flag)| flag)).collect()))
    }
}

#[cfg(test)]
mod tests;
