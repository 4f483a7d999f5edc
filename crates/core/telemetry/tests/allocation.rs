//! Recording allocates nothing.

use std::time::Duration;

use netram_alloc_counter::{AllocationCounter, allocations_of_thread};
use netram_telemetry::{LatencyHistogram, MetricCounter, MetricGauge, SingleWriterCounter};

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

#[test]
fn recording_allocates_nothing() {
    let (counter, sole) = (MetricCounter::new(), SingleWriterCounter::default());
    let (gauge, histogram) = (MetricGauge::new(), LatencyHistogram::new());
    let before = allocations_of_thread();
    for nanoseconds in 0..100_000 {
        counter.add(1);
        sole.add(1);
        gauge.set(nanoseconds);
        histogram.record(Duration::from_nanos(nanoseconds * 1_000_003));
    }
    assert_eq!(allocations_of_thread() - before, 0);
    assert_eq!(
        (counter.get(), sole.get(), gauge.get()),
        (100_000, 100_000, 99_999)
    );
    assert_eq!(histogram.snapshot().count(), 100_000);
}
