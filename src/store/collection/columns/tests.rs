//! Columns joined, against the rows of the sources one by one.

use proptest::prelude::*;

use super::*;
use crate::store::column::{CodeValues, Codes};

fn numeric(name: &str, dtype: DType, bytes: Vec<u8>, present: Option<Vec<u8>>) -> Column {
    Column {
        name: name.into(),
        data: ColumnData::Numeric { dtype, bytes: bytes.into() },
        present: present.map(Into::into),
    }
}

fn ints(name: &str, values: &[i32]) -> Column {
    numeric(name, DType::I32, values.iter().flat_map(|v| v.to_le_bytes()).collect(), None)
}

fn categorical(name: &str, codes: &[i8], labels: &[&str], ordered: bool) -> Column {
    let codes = Codes::new(CodeValues::I8(codes.to_vec().into()), labels.len());
    let categories = Categories::Text(labels.iter().collect());
    Column { name: name.into(), data: ColumnData::Categorical { codes, categories, ordered }, present: None }
}

fn text(name: &str, values: &[&str], present: Option<Vec<u8>>) -> Column {
    let data = ColumnData::Strings(values.iter().collect());
    Column { name: name.into(), data, present: present.map(Into::into) }
}

fn join(sources: Vec<Vec<Column>>) -> Result<JoinedColumns, ColumnFault> {
    let mut joiner = ColumnJoiner::default();
    for columns in sources {
        let n_rows = columns.first().map_or(2, Column::len);
        joiner.add(columns, n_rows)?;
    }
    Ok(joiner.finish())
}

/// Every row of a column in words; missing ones are `-`.
fn rows(column: &Column) -> Vec<String> {
    let is_there = |row: usize| column.present.as_ref().is_none_or(|p| p[row] != 0);
    (0..column.len())
        .map(|row| match &column.data {
            _ if !is_there(row) => "-".to_owned(),
            ColumnData::Numeric { dtype, bytes } => dtype.load_json(&bytes[row * dtype.size_bytes()..]).to_string(),
            ColumnData::Strings(texts) => texts.get(row).to_owned(),
            ColumnData::Categorical { codes, categories, .. } => match (usize::try_from(codes.get(row)), categories) {
                (Err(_), _) => "-".to_owned(),
                (Ok(code), Categories::Text(labels)) => labels.get(code).to_owned(),
                (Ok(code), Categories::Numeric { dtype, bytes }) => {
                    dtype.load_json(&bytes[code * dtype.size_bytes()..]).to_string()
                }
            },
        })
        .collect()
}

#[test]
fn what_a_source_lacks_is_missing() {
    let sources = vec![
        vec![ints("a", &[1, 2])],
        vec![ints("b", &[7, 8]), categorical("c", &[0, -1], &["x"], false)],
        vec![ints("a", &[3, 4]), text("t", &["p", "q"], None)],
        vec![],
    ];
    let joined = join(sources).unwrap();
    let found: Vec<(String, Vec<String>)> = joined.columns.iter().map(|c| (c.name.clone(), rows(c))).collect();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let expected =
        [("a", "1 2 - - 3 4 - -"), ("b", "- - 7 8 - - - -"), ("c", "- - x - - - - -"), ("t", "- - - - p q - -")];
    assert_eq!(found, expected.map(|(name, values)| (name.to_owned(), words(values))));
    assert!(joined.columns[2].present.is_none(), "a code says that it is missing");
}

#[test]
fn labels_are_united_and_old_codes_stay() {
    let first = categorical("c", &[1, 0], &["B", "A"], true);
    let joined = join(vec![vec![first.clone()], vec![categorical("c", &[0, 2], &["C", "A", "B"], true)]]).unwrap();
    let ColumnData::Categorical { codes, categories: Categories::Text(labels), ordered } = &joined.columns[0].data
    else {
        panic!("categories stay categories")
    };
    assert_eq!((0..4).map(|row| codes.get(row)).collect::<Vec<_>>(), [1, 0, 2, 0]);
    assert_eq!((labels.iter().collect::<Vec<_>>(), *ordered), (vec!["B", "A", "C"], false));
    assert_eq!((codes.counts(), joined.unordered.as_slice()), (&[2, 1, 1][..], &["c".to_owned()][..]));
    let same = join(vec![vec![first.clone()], vec![first]]).unwrap();
    assert!(matches!(same.columns[0].data, ColumnData::Categorical { ordered: true, .. }) && same.unordered.is_empty());
}

#[test]
fn many_labels_need_wider_codes() {
    let names: Vec<String> = (0..300).map(|i| format!("l{i}")).collect();
    let part = |range: std::ops::Range<usize>| {
        let labels: Vec<&str> = names[range].iter().map(String::as_str).collect();
        let codes: Vec<i8> = (0..100).collect();
        vec![categorical("c", &codes, &labels, false)]
    };
    let joined = join(vec![part(0..100), part(100..200), part(200..300), part(0..100)]).unwrap();
    let expected: Vec<String> = names.iter().chain(&names[..100]).cloned().collect();
    assert_eq!(rows(&joined.columns[0]), expected);
    let mut joined = joined;
    assert_eq!(joined.take_long_tables(299), [("c".to_owned(), 300)]);
    assert!(joined.columns.is_empty());
}

#[test]
fn numbers_widen_if_every_value_is_exact() {
    let doubles = |v: &[f64]| numeric("n", DType::F64, v.iter().flat_map(|v| v.to_le_bytes()).collect(), None);
    let longs = |v: &[i64]| numeric("n", DType::I64, v.iter().flat_map(|v| v.to_le_bytes()).collect(), None);
    let flags = |v: &[u8]| numeric("n", DType::Bool, v.to_vec(), Some(vec![1, 0]));
    let joined = join(vec![vec![flags(&[1, 0])], vec![ints("n", &[-3, 4])], vec![doubles(&[0.5, 2.0])]]).unwrap();
    assert_eq!(rows(&joined.columns[0]), ["1.0", "-", "-3.0", "4.0", "0.5", "2.0"]);
    assert_eq!(rows(&join(vec![vec![longs(&[5, 6])], vec![doubles(&[0.5, 1.0])]]).unwrap().columns[0])[0], "5.0");
    let fault = join(vec![vec![longs(&[1 << 53, (1 << 53) + 1])], vec![doubles(&[0.5, 1.0])]]).unwrap_err();
    assert_eq!((fault.first, fault.second), (0, 1));
    assert!(
        fault.reason.contains("int64 and float64") && fault.reason.contains("9007199254740993"),
        "{}",
        fault.reason
    );
}

#[test]
fn kinds_that_differ_are_refused_but_text_becomes_labels() {
    let labels = || vec![categorical("c", &[0, 1], &["x", "y"], true)];
    let fault = join(vec![labels(), vec![ints("c", &[1, 2])]]).unwrap_err();
    assert!(fault.reason.starts_with("text categories and int32"), "{}", fault.reason);
    assert!(join(vec![vec![ints("c", &[1, 2])], vec![text("c", &["1", "2"], None)]]).is_err());
    let texts = || vec![text("c", &["y", ""], Some(vec![1, 0]))];
    for sources in [vec![labels(), texts()], vec![texts(), labels()]] {
        let joined = join(sources.clone()).unwrap();
        let expected: Vec<String> = sources.iter().flat_map(|s| rows(&s[0])).collect();
        assert_eq!(rows(&joined.columns[0]), expected);
        assert!(matches!(joined.columns[0].data, ColumnData::Categorical { ordered: false, .. }));
    }
}

#[test]
fn numbers_can_be_labels() {
    let labels = |dtype: DType, bytes: Vec<u8>| {
        let codes = Codes::new(CodeValues::I8(vec![0, 1].into()), 2);
        let categories = Categories::Numeric { dtype, bytes: bytes.into() };
        let data = ColumnData::Categorical { codes, categories, ordered: false };
        vec![Column { name: "c".into(), data, present: None }]
    };
    let wide = labels(DType::I64, [9_i64, 300].iter().flat_map(|v| v.to_le_bytes()).collect());
    let joined = join(vec![labels(DType::U8, vec![3, 9]), wide, labels(DType::U8, vec![9, 4])]).unwrap();
    assert_eq!(rows(&joined.columns[0]), ["3", "9", "9", "300", "9", "4"]);
    assert!(join(vec![labels(DType::U8, vec![3, 9]), vec![categorical("c", &[0, 0], &["3"], false)]]).is_err());
}

proptest! {
    /// Joined labels are the labels of the sources, and the codes of a prefix of the sources do not change.
    #[test]
    fn a_source_at_the_end_changes_no_code(
        sources in prop::collection::vec((prop::collection::btree_set(0..40_u8, 1..12), prop::collection::vec(-1..12_i8, 3)), 1..8),
    ) {
        let column = |(labels, codes): &(std::collections::BTreeSet<u8>, Vec<i8>)| {
            let labels: Vec<String> = labels.iter().rev().map(|l| format!("l{l}")).collect();
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let codes: Vec<i8> = codes.iter().map(|&c| if usize::try_from(c).is_ok_and(|c| c < labels.len()) { c } else { -1 }).collect();
            categorical("c", &codes, &labels, false)
        };
        let all: Vec<Column> = sources.iter().map(column).collect();
        let mut before: Vec<i32> = Vec::new();
        for n in 1..=all.len() {
            let joined = join(all[..n].iter().map(|c| vec![c.clone()]).collect()).unwrap();
            prop_assert_eq!(rows(&joined.columns[0]), all[..n].iter().flat_map(rows).collect::<Vec<_>>());
            let ColumnData::Categorical { codes, .. } = &joined.columns[0].data else { unreachable!() };
            let now: Vec<i32> = (0..codes.len()).map(|row| codes.get(row)).collect();
            prop_assert_eq!(&now[..before.len()], before.as_slice());
            before = now;
        }
    }
}
