//! Counts of every operation: the paper's where they follow from it, otherwise the project's own, with bounds
//! of chance.

use std::time::Instant;

use crate::common::{HeapTestbed, plain, run};
use netram_oo7::{
    DatabaseAudit, DatabaseSize, DateIndex, Oo7Error, Oo7Parameters, Oo7Store, Oo7Transaction, Operation,
    audit,
};
use netram_rvm::RangeError;

/// Counts of every operation, run one after the other on one database, in the order of [`Operation::ALL`].
fn counts(name: &str) -> Vec<u64> {
    let parameters: Oo7Parameters = name.parse().unwrap();
    let store = plain(&parameters);
    Operation::ALL
        .iter()
        .map(|operation| run(&store, *operation, &parameters))
        .collect()
}

fn audited(name: &str) -> DatabaseAudit {
    let parameters: Oo7Parameters = name.parse().unwrap();
    audit_of(&plain(&parameters), &parameters)
}

fn audit_of(store: &impl Oo7Store, parameters: &Oo7Parameters) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found
}

/// Counts of t1 to t12c and cu, which follow from the numbers of objects.
const TRAVERSALS: [u64; 9] = [
    43_740, 2_187, 43_740, 174_960, 2_187, 43_740, 174_960, 83_106, 495,
];

#[test]
fn small_3_counts_what_the_paper_counts() {
    let found = counts("small-3");
    let of = |operation: Operation| {
        let place = Operation::ALL.iter().position(|other| *other == operation);
        found[place.unwrap()]
    };
    // Not random: 729 base assemblies with 3 composites of 20 parts, 38 letters in a document, 2,632 in the
    // manual.
    assert_eq!(found[..8], TRAVERSALS[..8]);
    for (operation, count) in [
        (Operation::T6, 2_187),
        (Operation::T8, 2_632),
        (Operation::T9, 0),
        (Operation::T10, 43_740),
        (Operation::T12a, 2_187),
        (Operation::T12c, 8_748),
        (Operation::Cu, 2_187),
        (Operation::Q1, 10),
        (Operation::Q7, 10_000),
        (Operation::Q8, 10_000),
        (Operation::I, 10),
        (Operation::D, 10),
    ] {
        assert_eq!(of(operation), count, "{operation}");
    }
    // Random: five standard deviations around the expected count; beside it the count of the same benchmark
    // with another generator.
    for (operation, expected, deviation, elsewhere) in [
        (Operation::T5Do, 493.7, 2.5, 495),
        (Operation::Q2, 100.0, 9.9, 101),
        (Operation::Q3, 1_000.0, 30.0, 1_002),
        (Operation::Q4, 43.7, 6.6, 45),
        (Operation::Q5, 218.7, 14.0, 233),
        (Operation::Q6, 460.0, 20.0, 490),
    ] {
        let count = of(operation);
        for count in [count, elsewhere] {
            let away = (count as f64 - expected).abs();
            assert!(
                away <= 5.0 * deviation,
                "{operation}: {count}, expected {expected}"
            );
        }
    }
    assert_eq!(of(Operation::T5Undo), of(Operation::T5Do));
}

#[test]
fn counts_equal_the_golden_values() {
    use Operation::{Q2, Q3, Q4, Q5, Q6, T5Do, T7};
    for (name, golden) in [
        ("tiny-3", [50, 124, 8, 97, 414, 222, 458]),
        ("small-3", [495, 32, 95, 1_002, 35, 196, 432]),
        ("small-6", [495, 32, 110, 1_054, 35, 196, 432]),
        ("small-9", [495, 32, 116, 986, 35, 196, 432]),
    ] {
        let found = counts(name);
        let chosen = [T5Do, T7, Q2, Q3, Q4, Q5, Q6].map(|operation| {
            let place = Operation::ALL.iter().position(|other| *other == operation);
            found[place.unwrap()]
        });
        assert_eq!(chosen, golden, "{name}");
    }
}

#[test]
fn databases_have_their_golden_digests() {
    let small = DatabaseAudit {
        modules: 1,
        complex: 364,
        base: 729,
        composites: 500,
        parts: 10_000,
        connections: 30_000,
        uses: [2_187, 2_187],
        used: 495,
        digest: 16_061_135_988_765_459_738,
    };
    assert_eq!(audited("small-3"), small);
    assert_eq!(
        audited("small-6"),
        DatabaseAudit {
            connections: 60_000,
            digest: 14_506_810_528_647_479_091,
            ..small
        }
    );
    assert_eq!(
        audited("small-9"),
        DatabaseAudit {
            connections: 90_000,
            digest: 8_840_874_449_781_966_495,
            ..small
        }
    );
    assert_eq!(
        audited("tiny-3"),
        DatabaseAudit {
            composites: 50,
            parts: 1_000,
            connections: 3_000,
            used: 50,
            digest: 10_969_625_710_248_858_558,
            ..small
        }
    );
}

/// Runs all operations in plain memory and on the heap; at the end both have the same contents.
#[test]
#[ignore = "half a minute of a release build on a quiet machine, and a gigabyte"]
fn medium_databases_have_their_counts() {
    for (connections, young, digest) in [
        (3, [1_076, 10_113], 11_273_128_815_467_997_497),
        (6, [1_010, 10_073], 4_761_463_177_050_066_834),
        (9, [1_077, 10_163], 8_643_000_414_819_326_525),
    ] {
        let parameters = Oo7Parameters::of(DatabaseSize::Medium, connections);
        let plain = plain(&parameters);
        let built = DatabaseAudit {
            modules: 1,
            complex: 364,
            base: 729,
            composites: 500,
            parts: 100_000,
            connections: 100_000 * u64::from(connections),
            uses: [2_187, 2_187],
            used: 495,
            digest,
        };
        assert_eq!(audit_of(&plain, &parameters), built, "{parameters}");
        let world = HeapTestbed::new(&parameters);
        let heap = world.build(&parameters, DateIndex::All);
        for (operation, count) in Operation::ALL.iter().zip(medium(young)) {
            let began = Instant::now();
            assert_eq!(
                run(&plain, *operation, &parameters),
                count,
                "{parameters} {operation}"
            );
            let plainly = began.elapsed();
            if *operation == Operation::T3c && connections < 9 {
                refused(&heap, &parameters);
                continue;
            }
            let began = Instant::now();
            assert_eq!(
                run(&heap, *operation, &parameters),
                count,
                "{parameters} {operation}"
            );
            eprintln!(
                "{parameters} {operation}: {count}, {plainly:?} plain, {:?} heap",
                began.elapsed()
            );
        }
        assert_eq!(
            audit_of(&heap, &parameters),
            audit_of(&plain, &parameters),
            "{parameters}"
        );
    }
}

/// In the order of [`Operation::ALL`]; counts that depend on the connections are parameters.
fn medium(young: [u64; 2]) -> [u64; Operation::ALL.len()] {
    let [q2, q3] = young;
    // Not random: 2,187 uses, 200 parts, 378 letters in a document, 26,316 in the manual.
    [
        437_400, 2_187, 437_400, 1_749_600, 2_187, 437_400, 1_749_600, 826_686, 495, 495, 2_187, 32, 26_316,
        0, 437_400, 2_187, 8_748, 2_187, 10, q2, q3, 35, 196, 432, 100_000, 100_000, 10, 10,
    ]
}

/// A medium t3c declares nearly 17 million ranges, more than a transaction may have, except by chance of the
/// dates with nine connections. The refusal changes nothing, and neither would success: each date is moved
/// there and back, twice.
fn refused(store: &impl Oo7Store, parameters: &Oo7Parameters) {
    let mut open = store.begin().unwrap();
    let Err(Oo7Error::Backend(error)) = Operation::T3c.run(&mut open, parameters, 1) else {
        panic!("it was done: then it can be counted");
    };
    let error = error.downcast_ref::<RangeError>();
    assert!(matches!(error, Some(RangeError::TooMany { .. })), "{error:?}");
}
