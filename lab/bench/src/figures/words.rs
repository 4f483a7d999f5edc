//! Words of far memory beside whole pages: TRANS and look-ups.

use std::time::{Duration, Instant};

use netram_far::{Arena, ArenaConfig, ArenaError, FarVec, RemotePagesConfig, WordAccess};
use netram_transport::NetAddress;

use super::{ScoreboardRow, volume};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::{LenderProcess, Testbed};

/// Number of rows and columns of TRANS's matrix; each row is longer than a page.
const SIDE: usize = 6000;
const COLUMNS: usize = 20;
/// Memory that the lender lends: the matrix and more.
const MEMORY: &str = "640MiB";
/// Local memory for the matrix, in bytes.
const TRANS_LOCAL: u64 = 16 << 20;
/// Number of values in the table, four times as many as are local.
const TABLE: usize = 8 << 20;
const TABLE_LOCAL: u64 = 16 << 20;
const LOOKUPS: usize = 20_000;
/// Number of look-ups that are known before the first is done.
const BATCH: usize = 1000;
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// A vector at a lender, filled with each index's expected value.
pub(super) struct FilledVector {
    pub(super) vec: FarVec<u64>,
    pub(super) arena: Arena,
}

pub(super) fn value(index: usize) -> u64 {
    (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Each lender gets a copy of every page. `None` if this process may not use `userfaultfd`, which `skipped`
/// then says.
pub(super) fn fill_vector(
    site: &Testbed,
    lenders: &[&NetAddress],
    (length, local_bytes): (usize, u64),
    (words, look_ahead): (WordAccess, bool),
    skipped: &mut Vec<String>,
) -> Result<Option<FilledVector>, BenchError> {
    let config = ArenaConfig {
        bytes: (length * 8) as u64,
        local_bytes,
        words,
        look_ahead,
        remote_pages: RemotePagesConfig {
            lenders: lenders.iter().map(|&lender| lender.clone()).collect(),
            security: site.security(true),
            copies: lenders.len(),
            ..RemotePagesConfig::default()
        },
        ..ArenaConfig::default()
    };
    let arena = match Arena::open(config) {
        Err(error @ (ArenaError::Refused { .. } | ArenaError::Kernel { .. })) => {
            skipped.push(format!("far memory: {error}"));
            return Ok(None);
        }
        opened => opened.context("open an arena")?,
    };
    let mut vec = FarVec::zeros(&arena, length).context("take a part of an arena")?;
    for (index, place) in vec.as_mut_slice().iter_mut().enumerate() {
        *place = value(index);
    }
    if !arena.remote_pages().flush(FLUSH_TIMEOUT) {
        return Err(BenchError::InvalidRequest(
            "the lender did not take all pages in time".to_owned(),
        ));
    }
    Ok(Some(FilledVector { vec, arena }))
}

fn check_values(found: impl Iterator<Item = (usize, u64)>) -> Result<(), BenchError> {
    match { found }.find(|(index, found)| *found != value(*index)) {
        None => Ok(()),
        Some((index, _)) => Err(BenchError::InvalidRequest(format!(
            "value {index} is not what was written"
        ))),
    }
}

/// Seconds for exchanging the matrix's first columns with its rows, as TRANS does with all, by words or by
/// references. Doing it twice restores the matrix.
fn exchange(filled: &mut FilledVector, by_words: bool) -> Result<f64, BenchError> {
    let began = Instant::now();
    for column in 0..COLUMNS {
        let length = SIDE - column - 1;
        let (down, across) = ((column + 1) * SIDE + column, column * SIDE + column + 1);
        if by_words {
            let vec = &mut filled.vec;
            let (mut from_column, mut from_row) = (vec![0; length], vec![0; length]);
            vec.gather_strided(down, SIDE, &mut from_column)
                .context("gather a column")?;
            vec.gather_strided(across, 1, &mut from_row)
                .context("gather a row")?;
            vec.scatter_strided(down, SIDE, &from_row)
                .context("scatter a column")?;
            vec.scatter_strided(across, 1, &from_column)
                .context("scatter a row")?;
        } else {
            let values = filled.vec.as_mut_slice();
            (0..length).for_each(|place| values.swap(down + place * SIDE, across + place));
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Checks that every value of the matrix is at its place.
fn in_place(filled: &FilledVector, exchanged: bool) -> Result<(), BenchError> {
    let belongs = |index: usize| {
        let (row, column) = (index / SIDE, index % SIDE);
        match exchanged && row.min(column) < COLUMNS {
            true => column * SIDE + row,
            false => index,
        }
    };
    let values = filled.vec.as_slice().iter();
    check_values(values.enumerate().map(|(index, value)| (belongs(index), *value)))
}

/// Time of a look-up in µs: in batches, one by one, or by references.
fn lookups(filled: &FilledVector, batch: Option<usize>) -> Result<f64, BenchError> {
    let mut state = 1_u64;
    let mut any = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % TABLE
    };
    let indices: Vec<usize> = (0..LOOKUPS).map(|_| any()).collect();
    let mut values = vec![0; LOOKUPS];
    let began = Instant::now();
    match batch {
        None => {
            let slice = filled.vec.as_slice();
            for (value, index) in values.iter_mut().zip(&indices) {
                *value = slice[*index];
            }
        }
        Some(1) => {
            for (value, index) in values.iter_mut().zip(&indices) {
                *value = filled.vec.get(*index).context("look one up")?;
            }
        }
        Some(batch) => {
            for (values, indices) in values.chunks_mut(batch).zip(indices.chunks(batch)) {
                filled.vec.gather(indices, values).context("look some up")?;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    check_values(indices.into_iter().zip(values))?;
    Ok(seconds * 1e6 / LOOKUPS as f64)
}

/// Ids of the rows with one copy of each page, and with two.
const IDS: [[&str; 4]; 2] = [
    ["far-trans", "far-trans-ahead", "far-lookups", "far-lookup"],
    [
        "far-trans-2-copies",
        "far-trans-ahead-2-copies",
        "far-lookups-2-copies",
        "far-lookup-2-copies",
    ],
];

pub(super) fn words(site: &Testbed, skipped: &mut Vec<String>) -> Result<Vec<ScoreboardRow>, BenchError> {
    let mut figures = Vec::new();
    for (index, ids) in IDS.iter().enumerate() {
        let lenders = page_lenders(site, index + 1, MEMORY)?;
        let addresses: Vec<&NetAddress> = lenders.iter().map(LenderProcess::address).collect();
        words_with(site, &addresses, ids, &mut figures, skipped)?;
    }
    Ok(figures)
}

fn words_with(
    site: &Testbed,
    lenders: &[&NetAddress],
    ids: &[&'static str; 4],
    figures: &mut Vec<ScoreboardRow>,
    skipped: &mut Vec<String>,
) -> Result<(), BenchError> {
    let (matrix, table) = ((SIDE * SIDE, TRANS_LOCAL), (TABLE, TABLE_LOCAL));
    let copies = copies_in_words(lenders.len());
    // Pages one by one, as in the paper; then with prefetching.
    for (id, look_ahead, floor) in [
        (ids[0], false, "by pages, none of which comes ahead"),
        (ids[1], true, "by pages that come ahead"),
    ] {
        let access = (WordAccess::Measured, look_ahead);
        let Some(mut filled_matrix) = fill_vector(site, lenders, matrix, access, skipped)? else {
            return Ok(());
        };
        let by_words = exchange(&mut filled_matrix, true)?;
        in_place(&filled_matrix, true)?;
        let by_pages = exchange(&mut filled_matrix, false)?;
        in_place(&filled_matrix, false)?;
        let what = format!(
            "TRANS: {COLUMNS} columns of {SIDE} x {SIDE} values exchanged with its rows, 16 MiB local, {copies}, by words; \
             floor: {floor}"
        );
        figures.push(ScoreboardRow::faster(id, what, "s", by_words, by_pages, 100.0));
    }
    let Some(by_pages) = fill_vector(site, lenders, table, (WordAccess::Never, true), skipped)? else {
        return Ok(());
    };
    let paged = lookups(&by_pages, None)?;
    drop(by_pages);
    for (id, batch, least) in [(ids[2], BATCH, 5.0), (ids[3], 1, 1.0)] {
        let access = (WordAccess::Measured, true);
        let Some(by_words) = fill_vector(site, lenders, table, access, skipped)? else {
            return Ok(());
        };
        let each = lookups(&by_words, Some(batch))?;
        let what =
            format!("a random look-up with a quarter local, {copies}, {batch} at once; floor: by pages");
        figures.push(ScoreboardRow::faster(id, what, "us", each, paged, least));
    }
    Ok(())
}

/// Lenders that lend memory for pages, one for each copy.
pub(super) fn page_lenders(
    site: &Testbed,
    copies: usize,
    memory: &str,
) -> Result<Vec<LenderProcess>, BenchError> {
    let start = |_| site.page_lender(volume::spec(None), memory);
    (0..copies).map(start).collect()
}

pub(super) fn copies_in_words(copies: usize) -> &'static str {
    match copies {
        1 => "one copy",
        _ => "two copies",
    }
}
