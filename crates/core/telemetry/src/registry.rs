//! The sources of a process's metrics.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::address::MetricsAddress;
use crate::process;
use crate::samples::{MetricSamples, MetricsFormat};
use crate::server::MetricsServer;

/// Something that has metrics: a journal, a lender, a volume. Its values are read only when somebody asks.
pub trait MetricSource: Send + Sync {
    /// Adds the values of this moment. May allocate, take locks that are held for moments, and wait for a
    /// thread that answers within moments. Other readers wait meanwhile.
    fn collect(&self, samples: &mut MetricSamples);
}

/// The sources of metrics.
#[derive(Default)]
pub struct MetricsRegistry {
    /// The process that made it.
    process: u32,
    sources: Mutex<Vec<Arc<dyn MetricSource>>>,
    pub(crate) pages: Mutex<SharedPages>,
}

/// The pages that are served, as long as somebody wants each.
pub(crate) type SharedPages = Vec<(MetricsAddress, Weak<MetricsServer>)>;

/// Registries of a process and of its descendants by `fork`, which have copies of all before their own.
type Generations = [OnceLock<MetricsRegistry>; 8];

impl MetricsRegistry {
    /// The registry of this process: every journal and lender in it is a source. A child of `fork` has one of
    /// its own, since a thread that its parent alone has may hold the locks of the parent's.
    pub fn of_process() -> &'static MetricsRegistry {
        static GENERATIONS: Generations = [const { OnceLock::new() }; 8];
        MetricsRegistry::of(&GENERATIONS, std::process::id())
    }

    fn of(generations: &Generations, process: u32) -> &MetricsRegistry {
        let made = generations.iter().map(|generation| {
            generation.get_or_init(|| MetricsRegistry {
                process,
                ..MetricsRegistry::default()
            })
        });
        let mut last = None;
        for registry in made {
            if registry.process == process {
                return registry;
            }
            last = Some(registry);
        }
        last.expect("there are several generations")
    }

    /// Adds a source, for as long as the result lives.
    pub fn add<S: MetricSource + 'static>(&'static self, source: &Arc<S>) -> MetricsRegistration<S> {
        process::started();
        self.lock().push(Arc::clone(source) as Arc<dyn MetricSource>);
        MetricsRegistration {
            registry: self,
            source: Arc::clone(source),
        }
    }

    /// The values of this moment. No source is added or removed meanwhile.
    pub fn read(&self) -> MetricSamples {
        let mut samples = MetricSamples::default();
        process::collect(&mut samples);
        for source in self.lock().iter() {
            source.collect(&mut samples);
        }
        samples
    }

    /// The values of this moment as text.
    pub fn text(&self, format: MetricsFormat) -> String {
        self.read().into_text(format)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn MetricSource>>> {
        // Each operation is one call on the list, so a panic elsewhere leaves it consistent.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source in a registry, which it leaves when this is dropped. No reading refers to it from then on, so its
/// owner's end is never a reader's work.
#[must_use = "the source is removed when this is dropped"]
pub struct MetricsRegistration<S: MetricSource> {
    registry: &'static MetricsRegistry,
    source: Arc<S>,
}

impl<S: MetricSource> Deref for MetricsRegistration<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.source
    }
}

impl<S: MetricSource> Drop for MetricsRegistration<S> {
    fn drop(&mut self) {
        // A child of `fork` has a copy of its parent's list, whose lock a thread of the parent may have held.
        if self.registry.process == std::process::id() {
            let address = Arc::as_ptr(&self.source).cast::<()>();
            let mut sources = self.registry.lock();
            sources.retain(|other| Arc::as_ptr(other).cast::<()>() != address);
        }
    }
}

impl<S: MetricSource> std::fmt::Debug for MetricsRegistration<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MetricsRegistration").finish_non_exhaustive()
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
    fn each_process_of_a_line_of_forks_has_a_registry_that_stays_its_own() {
        let generations: Generations = Default::default();
        let of = |process| std::ptr::from_ref(MetricsRegistry::of(&generations, process));
        let parent = of(10);
        assert_eq!(parent, of(10));
        // The child has what its parent had, and adds to it.
        let child = of(11);
        assert!(parent != child && child == of(11) && parent == of(10));
        // However long the line is, there is one.
        assert_eq!((12..40).map(of).last(), Some(of(17)));
    }

    #[test]
    fn a_source_is_read_for_as_long_as_its_owner_lives() {
        let registry: &MetricsRegistry = Box::leak(Box::new(MetricsRegistry {
            process: std::process::id(),
            ..MetricsRegistry::default()
        }));
        let wheel = registry.add(&Arc::new(Wheel(MetricCounter::new())));
        wheel.0.add(3);
        let text = || registry.text(MetricsFormat::OpenMetrics);
        assert!(text().contains("netram_turns_total 3\n"), "{}", text());
        drop(wheel);
        assert!(!text().contains("netram_turns"), "{}", text());
        assert!(text().contains("netram_build_info{version="), "{}", text());
    }
}
