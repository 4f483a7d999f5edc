//! The sources of a process's metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::process;
use crate::samples::{MetricSamples, MetricsFormat};

/// Something that has metrics: a journal, a lender, a volume. Its values are read only when somebody asks.
pub trait MetricSource: Send + Sync {
    /// Adds the values of this moment. May allocate, and take locks that are held for moments.
    fn collect(&self, samples: &mut MetricSamples);
}

/// The sources of metrics. A source that was dropped is no longer asked.
#[derive(Default)]
pub struct MetricsRegistry {
    sources: Mutex<Vec<Weak<dyn MetricSource>>>,
}

static OF_PROCESS: MetricsRegistry = MetricsRegistry {
    sources: Mutex::new(Vec::new()),
};

impl MetricsRegistry {
    /// The registry of this process: every journal and lender in it is a source.
    pub fn of_process() -> &'static MetricsRegistry {
        &OF_PROCESS
    }

    /// Adds a source, for as long as it lives.
    pub fn add<S: MetricSource + 'static>(&self, source: &Arc<S>) {
        process::started();
        let source: Weak<S> = Arc::downgrade(source);
        let mut sources = self.lock();
        sources.retain(|source| source.strong_count() > 0);
        sources.push(source);
    }

    /// Removes a source. Once this returns, no reading refers to it.
    pub fn remove<S: MetricSource>(&self, source: &Arc<S>) {
        let address = Arc::as_ptr(source).cast::<()>();
        self.lock().retain(|other| other.as_ptr().cast::<()>() != address);
    }

    /// The values of this moment. No source is added or removed meanwhile.
    pub fn read(&self) -> MetricSamples {
        let mut samples = MetricSamples::default();
        process::collect(&mut samples);
        for source in self.lock().iter().filter_map(Weak::upgrade) {
            source.collect(&mut samples);
        }
        samples
    }

    /// The values of this moment as text.
    pub fn text(&self, format: MetricsFormat) -> String {
        self.read().into_text(format)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn MetricSource>>> {
        // Each operation is one call on the list, so a panic elsewhere leaves it consistent.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::MetricCounter;
    use crate::family::MetricFamily;

    static FAMILY: MetricFamily = MetricFamily::counter("netram_turns_total", "Turns");

    struct Wheel(MetricCounter);

    impl MetricSource for Wheel {
        fn collect(&self, samples: &mut MetricSamples) {
            samples.counted(&FAMILY, &[], &self.0);
        }
    }

    #[test]
    fn a_source_is_read_for_as_long_as_it_lives() {
        let registry = MetricsRegistry::default();
        let wheel = Arc::new(Wheel(MetricCounter::new()));
        registry.add(&wheel);
        wheel.0.add(3);
        let text = || registry.text(MetricsFormat::OpenMetrics);
        assert!(text().contains("netram_turns_total 3\n"), "{}", text());
        registry.remove(&wheel);
        assert!(!text().contains("netram_turns"), "{}", text());
        registry.add(&wheel);
        assert!(text().contains("netram_turns"), "{}", text());
        drop(wheel);
        assert!(!text().contains("netram_turns"), "{}", text());
        assert!(text().contains("netram_build_info{version="), "{}", text());
    }
}
