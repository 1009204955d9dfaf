//! Joins against the rules of pandas, stated in other words.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn lists(sources: &[&[&str]]) -> GeneLists {
    let mut lists = GeneLists::default();
    for source in sources {
        lists.add(source.iter().collect());
    }
    lists
}

fn join(sources: &[&[&str]], how: Join) -> Result<(Vec<String>, ServedGenes, Option<Loss>), GeneFault> {
    let joined = lists(sources).join(how)?;
    Ok((joined.names.iter().map(str::to_owned).collect(), joined.served, joined.loss))
}

#[test]
fn equal_lists_are_left_alone_even_with_repeats() {
    for how in [Join::Inner, Join::Outer, Join::Exact] {
        let (names, served, loss) = join(&[&["b", "a", "b"], &["b", "a", "b"]], how).unwrap();
        assert_eq!(
            (names.as_slice(), served.is_identity(), loss),
            (&["b", "a", "b"].map(String::from)[..], true, None)
        );
    }
}

#[test]
fn orders_are_those_of_anndata() {
    let sources: [&[&str]; 3] = [&["c", "a", "b"], &["b", "x", "c"], &["c", "b", "a"]];
    let (names, served, loss) = join(&sources, Join::Inner).unwrap();
    assert_eq!(names, ["c", "b"]);
    assert_eq!(loss, Some(Loss { n_union: 4, n_joined: 2, source: 2, n_source: 1 }));
    assert_eq!((0..3).map(|g| served.of(1).unwrap().get(g)).collect::<Vec<_>>(), [Some(1), None, Some(0)]);
    assert_eq!(join(&sources, Join::Outer).unwrap().0, ["a", "b", "c", "x"]);
    // The same genes in another order: that of the first, also where exactly the same are asked for.
    let (names, served, loss) = join(&[&["c", "a"], &["a", "c"]], Join::Exact).unwrap();
    assert_eq!((names.as_slice(), loss, served.of(0)), (&["c", "a"].map(String::from)[..], None, None));
    assert!(served.unsettled(1).is_some());
    // Code points, not letters; and a source without genes.
    assert_eq!(join(&[&["é", "Z"], &["a"]], Join::Outer).unwrap().0, ["Z", "a", "é"]);
    assert_eq!(join(&[&["b", "a"], &[]], Join::Outer).unwrap().0, ["b", "a"]);
}

#[test]
fn what_cannot_be_joined_is_named() {
    let twice = GeneFault::Twice { source: 1, name: "b".into() };
    assert_eq!(join(&[&["a"], &["b", "b"]], Join::Outer).unwrap_err(), twice);
    let disjoint = GeneFault::Disjoint { source: 2, examples: vec!["a".into(), "c".into()] };
    assert_eq!(join(&[&["a", "b"], &["b"], &["c", "a"]], Join::Inner).unwrap_err(), disjoint);
    let differs = GeneFault::Differs { source: 1, n: 2, examples: vec!["b".into(), "c".into()] };
    assert_eq!(join(&[&["a", "b"], &["a", "c"]], Join::Exact).unwrap_err(), differs);
}

#[test]
fn flags_must_agree() {
    let joined = |how| lists(&[&["a", "b"], &["b", "c"], &["b", "c"]]).join(how).unwrap().served;
    let flags = |second: [bool; 2]| {
        let mut flags = GeneFlags::default();
        flags.add(0, 0, vec![true, false]);
        flags.add(1, 1, second.to_vec());
        flags.add(2, 1, second.to_vec());
        flags
    };
    assert_eq!(flags([false, true]).join(&joined(Join::Outer)).unwrap(), Some(vec![true, false, true]));
    assert_eq!(flags([false, true]).join(&joined(Join::Inner)).unwrap(), Some(vec![false]));
    let differ = FlagsDiffer { first: 0, second: 1, gene: 1 };
    assert_eq!(flags([true, true]).join(&joined(Join::Outer)), Err(differ));
    assert_eq!(GeneFlags::default().join(&joined(Join::Inner)), Ok(None));
}

proptest! {
    /// Every gene of every source lands where its name is, and nothing else is dropped or invented.
    #[test]
    fn names_are_kept(sources in prop::collection::vec(prop::collection::btree_set(0..30_u8, 0..20), 1..6), seed: u64) {
        let sources: Vec<Vec<String>> = sources
            .iter()
            .map(|genes| {
                let mut genes: Vec<_> = genes.iter().map(|g| format!("g{g}")).collect();
                genes.sort_by_key(|g| *blake3::hash(format!("{g} {seed}").as_bytes()).as_bytes());
                genes
            })
            .collect();
        let texts: Vec<Vec<&str>> = sources.iter().map(|s| s.iter().map(String::as_str).collect()).collect();
        let slices: Vec<&[&str]> = texts.iter().map(Vec::as_slice).collect();
        let sets: Vec<BTreeSet<&str>> = texts.iter().map(|s| s.iter().copied().collect()).collect();
        let shared = sets.iter().skip(1).fold(sets[0].clone(), |a, b| &a & b);
        let union = sets.iter().fold(BTreeSet::new(), |a, b| &a | b);
        let all_equal = slices.windows(2).all(|w| w[0] == w[1]);
        for how in [Join::Inner, Join::Outer] {
            let Ok((names, served, _)) = join(&slices, how) else {
                prop_assert!(how == Join::Inner && shared.is_empty());
                continue;
            };
            let expected = match how { _ if all_equal => &sets[0], Join::Inner => &shared, _ => &union };
            prop_assert_eq!(&names.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected);
            prop_assert_eq!(names.len(), expected.len());
            for (s, genes) in slices.iter().enumerate() {
                for (col, gene) in (0_u32..).zip(*genes) {
                    let to = served.of(s).map_or(Some(col), |map| map.get(col));
                    prop_assert_eq!(to.map(|to| names[to as usize].as_str()), expected.contains(gene).then_some(*gene));
                }
            }
        }
    }
}
