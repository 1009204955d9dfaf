//! Properties of whole orders. The numbers themselves are checked by the golden vectors and their Python recomputation
//! (`tests/order.rs`).

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const PASSES: [Pass; 2] = [Pass::Epoch(3), Pass::InOrder];
const POLICIES: [RankPolicy; 2] = [RankPolicy::Drop, RankPolicy::Repeat];
const TAILS: [Tail; 3] = [Tail::Keep, Tail::Drop, Tail::Pad];

fn order(blocks: Blocks, batch_size: u32, fetch_factor: u32, seed: u64, tail: Tail) -> Result<Order, OrderError> {
    Order::new(OrderConfig { n_rows: blocks.n_rows(), blocks, batch_size, fetch_factor, seed, tail })
}

fn one_source(n_rows: u64) -> [SourceRows; 1] {
    [SourceRows { rows: 0..n_rows, first_rows: None, x_bytes: 0 }]
}

fn fixed(n_rows: u64, block_rows: u32) -> Blocks {
    Blocks::fixed(block_rows, &one_source(n_rows)).unwrap()
}

fn all_rows(order: &Order, pass: Pass) -> Vec<u64> {
    (0..order.n_windows(pass)).flat_map(|window| order.window_rows(pass, window)).collect()
}

fn sorted(rows: &[u64]) -> Vec<u64> {
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    rows
}

/// Everything that must hold of any order, whatever its blocks.
fn check_order(blocks: &Blocks, batch_size: u32, fetch_factor: u32, seed: u64) {
    let n_rows = blocks.n_rows();
    let m = u64::from(batch_size);
    let of_tail = |tail| order(blocks.clone(), batch_size, fetch_factor, seed, tail);
    let keep = of_tail(Tail::Keep).unwrap();
    let kept = all_rows(&keep, PASSES[0]);
    assert_eq!(sorted(&kept), (0..n_rows).collect::<Vec<_>>());
    assert_eq!(all_rows(&keep, Pass::InOrder), (0..n_rows).collect::<Vec<_>>());
    match of_tail(Tail::Drop) {
        Ok(drop) => {
            assert_eq!(all_rows(&drop, PASSES[0]), kept[..(n_rows / m * m) as usize]);
            check_batches(&drop);
        }
        Err(refused) => {
            assert!(n_rows < m);
            assert_eq!(refused, OrderError::NothingLeft { n_rows, batch_size });
        }
    }
    let pad = of_tail(Tail::Pad).unwrap();
    let n_padded = (n_rows.div_ceil(m) * m) as usize;
    assert_eq!(all_rows(&pad, PASSES[0]), kept.iter().copied().cycle().take(n_padded).collect::<Vec<_>>());
    check_batches(&keep);
    check_batches(&pad);
}

/// The ways to ask for batches agree with each other.
fn check_batches(order: &Order) {
    for pass in PASSES {
        let mut batch = 0;
        for window in 0..order.n_windows(pass) {
            let rows = order.window_rows(pass, window);
            let mut slots = &rows[..];
            assert_eq!(order.window_batches(pass, window).start, batch);
            assert!(order.window_batches(pass, window).end > batch);
            for of_window in order.window_batches(pass, window) {
                assert_eq!((of_window, order.window_of(batch)), (batch, window));
                let len = order.batch_len(pass, batch);
                let (here, rest) = slots.split_at(len as usize);
                assert_eq!(order.batch_rows(pass, batch), here);
                assert!(order.pad_rows(pass, batch) < order.batch_size());
                batch += 1;
                slots = rest;
                let last = batch == order.n_batches(pass);
                assert!(last || (len == order.batch_size() && order.pad_rows(pass, batch - 1) == 0));
            }
            assert!(slots.is_empty());
        }
        assert_eq!(batch, order.n_batches(pass));
        assert_eq!(order.batch_len(pass, batch), 0);
        assert!(order.batch_rows(pass, batch).is_empty());
        assert!(order.window_rows(pass, order.n_windows(pass)).is_empty());
    }
    let padded: u64 = (0..order.n_batches(PASSES[0])).map(|batch| u64::from(order.pad_rows(PASSES[0], batch))).sum();
    let total: u64 = (0..order.n_batches(PASSES[0])).map(|batch| u64::from(order.batch_len(PASSES[0], batch))).sum();
    match order.tail() {
        Tail::Pad => assert_eq!(total, order.n_rows() + padded),
        Tail::Keep => assert_eq!((total, padded), (order.n_rows(), 0)),
        Tail::Drop => assert!(padded == 0 && total <= order.n_rows()),
    }
}

/// The batches of every share of `n_hosts` hosts with `n_ranks` ranks each; `None` leaves the level out.
fn shares(order: &Order, pass: Pass, n_hosts: Option<u32>, n_ranks: Option<u32>, policy: RankPolicy) -> Vec<Vec<u64>> {
    let hosts: Vec<_> = n_hosts.map_or(vec![None], |n| (0..n).map(|h| Some((h, n))).collect());
    let ranks: Vec<_> = n_ranks.map_or(vec![None], |n| (0..n).map(|r| Some((r, n))).collect());
    let pairs = hosts.iter().flat_map(|&host| ranks.iter().map(move |&rank| (host, rank)));
    pairs
        .map(|(host, rank)| {
            let share = Share::new(host, rank).unwrap();
            let batches: Vec<u64> =
                (0..order.share_len(pass, share, policy)).map(|i| order.share_batch(pass, share, policy, i)).collect();
            for batch in 0..order.n_batches(pass) + 2 {
                let position = batches.iter().position(|&listed| listed == batch).map(to_u64);
                assert_eq!(order.share_position(pass, share, policy, batch), position, "{share:?} {batch}");
            }
            batches
        })
        .collect()
}

/// What of a list is given to so many parts, and how much to each.
fn given(list: &[u64], n_parts: u32, policy: RankPolicy, again: &[u64]) -> (Vec<u64>, usize) {
    let n_parts = n_parts as usize;
    let n_rounds = if policy == RankPolicy::Drop { list.len() / n_parts } else { list.len().div_ceil(n_parts) };
    (list.iter().chain(again.iter().cycle()).copied().take(n_rounds * n_parts).collect(), n_rounds)
}

/// Deals a list one by one, as the definition says it.
fn deal(list: &[u64], n_parts: u32, policy: RankPolicy, again: &[u64]) -> Vec<Vec<u64>> {
    let (dealt, _) = given(list, n_parts, policy, again);
    let n_parts = n_parts as usize;
    (0..n_parts).map(|part| dealt.iter().skip(part).step_by(n_parts).copied().collect()).collect()
}

/// Cuts a list into runs, as the definition says it.
fn runs(list: &[u64], n_parts: u32, policy: RankPolicy, again: &[u64]) -> Vec<Vec<u64>> {
    let (dealt, len) = given(list, n_parts, policy, again);
    (0..n_parts as usize).map(|part| dealt[part * len..(part + 1) * len].to_vec()).collect()
}

/// Shares by the definition: lists that are dealt.
fn shares_by_lists(
    order: &Order,
    pass: Pass,
    n_hosts: Option<u32>,
    n_ranks: Option<u32>,
    policy: RankPolicy,
) -> Vec<Vec<u64>> {
    let all: Vec<u64> = (0..order.n_batches(pass)).collect();
    let is_full = |batch: &u64| order.batch_len(pass, *batch) == order.batch_size();
    let full: Vec<u64> = all.iter().copied().filter(is_full).collect();
    let dealt_out = if policy == RankPolicy::Drop { &full } else { &all };
    let hosts = n_hosts.map_or(vec![dealt_out.clone()], |n_hosts| {
        let windows: Vec<&[u64]> = full.chunks_exact(order.fetch_factor() as usize).collect();
        let n_rounds = windows.len() / n_hosts as usize;
        let by_window = n_rounds * n_hosts as usize;
        let rest = &dealt_out[by_window * order.fetch_factor() as usize..];
        let mut hosts: Vec<Vec<u64>> = vec![Vec::new(); n_hosts as usize];
        for (i, window) in windows[..by_window].iter().enumerate() {
            hosts[i % n_hosts as usize].extend_from_slice(window);
        }
        for (host, run) in hosts.iter_mut().zip(runs(rest, n_hosts, policy, &all)) {
            host.extend(run);
        }
        hosts
    });
    let Some(n_ranks) = n_ranks else { return hosts };
    hosts.iter().flat_map(|list| deal(list, n_ranks, policy, list)).collect()
}

fn check_shares(order: &Order, n_hosts: Option<u32>, n_ranks: Option<u32>) {
    if (n_hosts, n_ranks) == (None, None) {
        // Nothing is dealt: every batch, whatever the policy.
        let all = POLICIES.map(|policy| shares(order, Pass::Epoch(0), None, None, policy));
        let batches: Vec<u64> = (0..order.n_batches(Pass::Epoch(0))).collect();
        assert_eq!(all, [vec![batches.clone()], vec![batches]]);
        return;
    }
    let world = u64::from(n_hosts.unwrap_or(1)) * u64::from(n_ranks.unwrap_or(1));
    for pass in PASSES {
        let n_batches = order.n_batches(pass);
        let n_full = (0..n_batches).filter(|&batch| order.batch_len(pass, batch) == order.batch_size()).count() as u64;
        for policy in POLICIES {
            let found = shares(order, pass, n_hosts, n_ranks, policy);
            assert_eq!(
                found,
                shares_by_lists(order, pass, n_hosts, n_ranks, policy),
                "{n_hosts:?} {n_ranks:?} {policy:?}"
            );
            assert!(found.iter().all(|share| share.len() == found[0].len()));
            let served: BTreeSet<u64> = found.iter().flatten().copied().collect();
            let n_served = found.iter().map(Vec::len).sum::<usize>() as u64;
            if policy == RankPolicy::Drop {
                assert_eq!(to_u64(served.len()), n_served, "a batch is in two shares");
                assert!(n_full - n_served < world);
                assert!(served.iter().all(|&batch| order.batch_len(pass, batch) == order.batch_size()));
            } else {
                assert_eq!(served, (0..n_batches).collect());
            }
        }
    }
}

#[test]
fn small_orders_exhaustively() {
    for n_rows in 1..=64 {
        for (batch_size, fetch_factor) in [(1, 1), (2, 3), (5, 2), (7, 4), (16, 1), (64, 2), (100, 1)] {
            for block_rows in [1, 3, 16, 200] {
                check_order(&fixed(n_rows, block_rows), batch_size, fetch_factor, n_rows);
            }
        }
    }
}

#[test]
fn small_shares_exhaustively() {
    for n_rows in 1..=40 {
        for (batch_size, fetch_factor) in [(1, 1), (1, 3), (3, 2), (7, 4)] {
            for tail in TAILS {
                let Ok(order) = order(fixed(n_rows, 4), batch_size, fetch_factor, 1, tail) else { continue };
                for n_ranks in [1, 2, 3, 4, 50] {
                    check_shares(&order, None, Some(n_ranks));
                    for n_hosts in [1, 2, 3, 5] {
                        check_shares(&order, Some(n_hosts), Some(n_ranks));
                    }
                }
                check_shares(&order, Some(2), None);
                check_shares(&order, Some(50), None);
            }
        }
    }
}

prop_compose! {
    /// Sources of up to `max_rows` rows, cut along random chunks or fixed.
    fn any_blocks(max_rows: u64)(
        sources in prop::collection::vec((0..=max_rows, prop::option::of(1..60_u64), 0..400_000_u64, any::<u64>()), 1..5),
        block_size in prop::option::of(1..100_u32),
    ) -> Blocks {
        let mut next = 0;
        let sources: Vec<SourceRows> = sources.into_iter().map(|(n_rows, chunk_rows, row_bytes, salt)| {
            let rows = next..next + n_rows;
            next = rows.end;
            let first_rows = chunk_rows.map(|chunk_rows| {
                let mut draws = rng::Draws::new(salt, 0, rng::Domain::Phase, 0);
                let mut first_rows = Vec::new();
                let mut row = rows.start;
                while row < rows.end {
                    first_rows.push(row);
                    row += 1 + draws.below(2 * chunk_rows);
                }
                first_rows
            });
            SourceRows { rows, first_rows, x_bytes: n_rows * row_bytes }
        }).collect();
        match block_size {
            Some(block_rows) => Blocks::fixed(block_rows, &sources).unwrap(),
            None => Blocks::auto(&sources).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_row_once(blocks in any_blocks(500), batch_size in 1..80_u32, fetch_factor in 1..9_u32, seed: u64) {
        prop_assume!(blocks.n_rows() > 0);
        check_order(&blocks, batch_size, fetch_factor, seed);
    }

    #[test]
    fn shares_are_disjoint_and_equal(
        blocks in any_blocks(300), batch_size in 1..30_u32, fetch_factor in 1..9_u32, tail in 0..3_usize,
        n_hosts in prop::option::of(1..6_u32), n_ranks in prop::option::of(1..10_u32),
    ) {
        if let Ok(order) = order(blocks, batch_size, fetch_factor, 0, TAILS[tail]) {
            check_shares(&order, n_hosts, n_ranks);
        }
    }

    #[test]
    fn epochs_move_whole_blocks(blocks in any_blocks(500), epoch in 0..1_u32 << 21, seed: u64) {
        prop_assume!(blocks.n_rows() > 0);
        // In a single window of single blocks nothing is split: with windows as long as the data, look at the table itself.
        let n_rows = blocks.n_rows();
        let mut sequence = Vec::new();
        epoch::Tables::new(&blocks).with(&blocks, seed, epoch, |table| table.extend(&blocks, 0..n_rows, &mut sequence));
        prop_assert_eq!(sorted(&sequence), (0..n_rows).collect::<Vec<_>>());
        // Inside stored blocks, and between the borders of fixed ones, rows follow each other; so the sequence has at most as
        // many breaks as an epoch has blocks.
        let breaks = sequence.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
        let n_fixed = blocks.sources().filter(|(_, block_rows)| block_rows.is_some()).count() as u64;
        prop_assert!(breaks < blocks.n_blocks() + n_fixed);
        let starts: BTreeSet<u64> = blocks.first_rows().iter().map(|row| row.cast_unsigned()).collect();
        for (rows, block_rows) in blocks.sources() {
            if block_rows.is_none() {
                let inside = sequence.windows(2).filter(|pair| rows.contains(&pair[1]) && !starts.contains(&pair[1]));
                prop_assert!(inside.clone().all(|pair| pair[1] == pair[0] + 1));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_row_once_at_a_million(
        blocks in any_blocks(250_000), batch_size in 1..5000_u32, fetch_factor in 1..200_u32, seed: u64, tail in 0..3_usize,
    ) {
        if let Ok(order) = order(blocks, batch_size, fetch_factor, seed, TAILS[tail]) {
            let rows = all_rows(&order, Pass::Epoch(0));
            let n_rows = order.n_rows() as usize;
            let mut seen = vec![false; n_rows];
            for &row in rows.iter().take(n_rows) {
                prop_assert!(!std::mem::replace(&mut seen[row as usize], true));
            }
            if order.tail() != Tail::Drop {
                prop_assert!(rows.len() >= n_rows);
            }
        }
    }
}

#[test]
fn epochs_and_seeds_differ_and_repeat() {
    let rows = |seed, epoch| all_rows(&order(fixed(1000, 8), 64, 4, seed, Tail::Keep).unwrap(), Pass::Epoch(epoch));
    let epochs: BTreeSet<Vec<u64>> = (0..3).flat_map(|epoch| [rows(1, epoch), rows(2, epoch)]).collect();
    assert_eq!(epochs.len(), 6);
    assert_eq!(rows(1, 2), rows(1, 2));
}

#[test]
fn threads_agree() {
    let shared = order(fixed(5000, 8), 64, 4, 9, Tail::Pad).unwrap();
    let expected: Vec<_> = (0..4).map(|epoch| all_rows(&shared, Pass::Epoch(epoch))).collect();
    let fresh = order(fixed(5000, 8), 64, 4, 9, Tail::Pad).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (fresh, expected) = (&fresh, &expected);
            scope.spawn(move || {
                for i in 0..4 {
                    let epoch = (i + thread) % 4;
                    let pass = Pass::Epoch(epoch);
                    let rows: Vec<u64> =
                        (0..fresh.n_batches(pass)).flat_map(|batch| fresh.batch_rows(pass, batch)).collect();
                    assert_eq!(rows, expected[epoch as usize]);
                }
            });
        }
    });
}

#[test]
fn membership_ignores_readers() {
    // Rows sorted by label, four ranks: every rank sees all four quarters of the data, and the union is the epoch.
    let order = order(fixed(4096, 16), 32, 32, 0, Tail::Keep).unwrap();
    for ranks in shares(&order, Pass::Epoch(0), None, Some(4), RankPolicy::Drop) {
        let quarters: BTreeSet<u64> =
            ranks.iter().flat_map(|&batch| order.batch_rows(Pass::Epoch(0), batch)).map(|row| row / 1024).collect();
        assert_eq!(quarters.len(), 4);
    }
}

#[test]
fn shuffles_reach_everywhere() {
    // A row of block 0 is in the first half of about half of the epochs (200 draws: 5 sigma are 35).
    let order = order(fixed(1024, 16), 16, 8, 77, Tail::Keep).unwrap();
    let in_first_half = (0..200)
        .filter(|&epoch| (0..4).any(|window| order.window_rows(Pass::Epoch(epoch), window).contains(&0)))
        .count();
    assert!((65..=135).contains(&in_first_half), "{in_first_half}");
}

#[test]
fn impossible_orders_are_refused() {
    let refused = |n_rows, batch_size, fetch_factor, tail| {
        let refused = order(fixed(n_rows, 64), batch_size, fetch_factor, 0, tail).err().unwrap().to_string();
        assert!(!refused.contains('\n'));
        refused
    };
    assert!(refused(0, 4, 4, Tail::Keep).contains("no rows"));
    assert!(refused(9, 0, 4, Tail::Keep).contains("--batch-size 0"));
    assert!(refused(9, 4, 0, Tail::Keep).contains("--fetch-factor 0"));
    assert!(refused(9, 10, 1, Tail::Drop).contains("--tail drop"));
    assert!(refused(1 << 30, 1 << 16, 1 << 13, Tail::Keep).contains("lower --fetch-factor"));
    assert!(refused(9, u32::MAX, 1, Tail::Pad).contains("--batch-size 4294967295"));
    assert!(refused((1 << 32) + 1, 1, 1, Tail::Keep).contains("raise --batch-size"));
    let config =
        OrderConfig { n_rows: 8, blocks: fixed(9, 2), batch_size: 1, fetch_factor: 1, seed: 0, tail: Tail::Keep };
    assert_eq!(Order::new(config).err(), Some(OrderError::RowCount { found: 9, expected: 8 }));
    // A huge fetch factor on small data is one window.
    let order = order(fixed(9, 2), 2, u32::MAX, 0, Tail::Keep).unwrap();
    assert_eq!((order.n_windows(Pass::Epoch(0)), all_rows(&order, Pass::Epoch(0)).len()), (1, 9));
}

#[test]
fn a_billion_rows_fit_into_100_mb() {
    const N_BLOCKS: u64 = 10_000_000;
    // Blocks of 70 to 130 rows, 100 on average.
    let first_rows = (0..N_BLOCKS).map(|block| block * 100 + block * 7919 % 31).collect();
    let sources = [SourceRows { rows: 0..N_BLOCKS * 100, first_rows: Some(first_rows), x_bytes: 0 }];
    let blocks = Blocks::auto(&sources).unwrap();
    drop(sources);
    let order = order(blocks, 256, 400, 11, Tail::Keep).unwrap();
    assert_eq!((order.n_rows(), order.n_blocks()), (1_000_000_000, N_BLOCKS));
    let batch = order.batch_rows(Pass::Epoch(5), 0);
    assert_eq!(batch.iter().collect::<BTreeSet<_>>().len(), 256);
    assert!(order.resident_bytes() <= 100_000_000, "{}", order.resident_bytes());
    assert!(order.resident_bytes() <= order.max_resident_bytes());
    // The last window ends with the last row of the sequence, and its rows lie in whole blocks but for the one at its start.
    let last = order.n_windows(Pass::Epoch(5)) - 1;
    let rows = sorted(&order.window_rows(Pass::Epoch(5), last));
    assert_eq!(to_u64(rows.len()), 1_000_000_000 - last * 102_400);
    let ends = rows.windows(2).filter(|pair| pair[1] != pair[0] + 1).map(|pair| pair[0] + 1);
    let broken = ends.filter(|end| end % 100 != (end / 100) * 7919 % 31).count();
    assert!(broken <= 1, "{broken}");
}
