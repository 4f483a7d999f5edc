use super::{FailureClass, RetryBackoff, RetryPolicy, RetryVerdict, SystemCall};
use crate::limit::{FAILURE_PATIENCE, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use crate::port::IoError;
use crate::time::{Nanos, Time};

const CALLS: [SystemCall; 11] = [
    SystemCall::Open,
    SystemCall::Stat,
    SystemCall::Read,
    SystemCall::Write,
    SystemCall::SyncedWrite,
    SystemCall::Allocate,
    SystemCall::Name,
    SystemCall::Map,
    SystemCall::Lock,
    SystemCall::Close,
    SystemCall::Sync,
];

/// Linux's highest error number (EHWPOISON).
const ERRNO_MAX: i32 = 133;

/// The error numbers of transient failures, listed independently of the module's names: EPERM, EINTR, EAGAIN,
/// ENOMEM, EACCES, EBUSY, ENFILE, EMFILE, ETXTBSY, ENOSPC, ENOLCK, ENOBUFS, ETIMEDOUT, EDQUOT.
const PASSING: [i32; 14] = [1, 4, 11, 12, 13, 16, 23, 24, 26, 28, 37, 105, 110, 122];

/// Tries every call with every error number. A mount once failed for good because the `open` before an
/// `fsync` found no free descriptor.
#[test]
fn only_a_report_of_write_back_is_data_lost() {
    let mut judged = 0;
    for call in CALLS {
        let syncs = [SystemCall::Sync, SystemCall::SyncedWrite, SystemCall::Close].contains(&call);
        for errno in 1..=ERRNO_MAX {
            let expected = match (syncs, errno) {
                (true, 4) if call == SystemCall::Close => FailureClass::Report,
                (_, 4) => FailureClass::Retry,
                (true, _) => FailureClass::DataLost,
                (false, errno) if PASSING.contains(&errno) => FailureClass::Retry,
                (false, _) => FailureClass::Report,
            };
            let failure = IoError { errno }.of(call);
            assert_eq!(failure.class(), expected, "{call:?} with errno {errno}");
            assert_eq!(
                failure.is_final(),
                expected == FailureClass::DataLost,
                "{call:?} with errno {errno}"
            );
            judged += 1;
        }
    }
    assert_eq!(judged, 11 * 133);
}

#[test]
fn a_pause_doubles_up_to_its_maximum_and_restarts_after_success() {
    let mut backoff = RetryBackoff::new();
    let mut last = backoff.failed(IoError::EMFILE).pause;
    assert_eq!(last, RETRY_PAUSE_MIN);
    for _ in 0..200 {
        let pause = backoff.failed(IoError::EMFILE).pause;
        assert_eq!(pause.0, (last.0 * 2).min(RETRY_PAUSE_MAX.0));
        last = pause;
    }
    assert_eq!(last, RETRY_PAUSE_MAX);
    assert_eq!(backoff.succeeded(), 201);
    assert_eq!(backoff.succeeded(), 0);
    assert_eq!(backoff.failed(IoError::EMFILE).pause, RETRY_PAUSE_MIN);
}

#[test]
fn a_failure_is_logged_once_per_cause_and_again_after_success() {
    let mut backoff = RetryBackoff::new();
    assert!(backoff.failed(IoError::ENOSPC).should_log);
    assert!(!backoff.failed(IoError::ENOSPC).should_log);
    assert!(backoff.failed(IoError::EMFILE).should_log);
    assert!(backoff.failed(IoError::ENOSPC).should_log);
    backoff.succeeded();
    assert!(backoff.failed(IoError::ENOSPC).should_log);
}

#[test]
fn a_failed_sync_ends_work_at_once_and_lack_of_space_never_does() {
    let (room, sync) = (
        IoError::ENOSPC.of(SystemCall::Write),
        IoError::EIO.of(SystemCall::Sync),
    );
    let bad = IoError::EIO.of(SystemCall::Write);
    let day = Time(0) + Nanos::from_ms(86_400_000);
    let again = |verdict| matches!(verdict, RetryVerdict::Again(_));

    assert_eq!(
        RetryPolicy::new().failed(sync, Time(0), false),
        RetryVerdict::GiveUp
    );

    let mut policy = RetryPolicy::new();
    assert!(again(policy.failed(room, Time(0), false)));
    assert!(again(policy.failed(room, day, false)));
    assert_eq!(policy.failing(), Some(room));
    // Time spent waiting for space does not count against another failure.
    assert!(again(policy.failed(bad, day, false)));
    assert!(again(policy.failed(
        bad,
        day + Nanos(FAILURE_PATIENCE.0 - 1),
        false
    )));
    assert_eq!(
        policy.failed(bad, day + FAILURE_PATIENCE, false),
        RetryVerdict::GiveUp
    );

    assert_eq!(policy.succeeded(), 4);
    assert_eq!(policy.failing(), None);
    assert!(again(policy.failed(bad, day + day.since(Time(0)), false)));
}

#[test]
fn hurried_work_does_not_wait_for_space() {
    let room = IoError::ENOSPC.of(SystemCall::Write);
    let mut policy = RetryPolicy::new();
    let RetryVerdict::Again(first) = policy.failed(room, Time(0), true) else {
        panic!("it is tried again at once");
    };
    assert_eq!(first.pause, RETRY_PAUSE_MIN);
    let end = Time(0) + FAILURE_PATIENCE;
    assert_eq!(policy.failed(room, end, true), RetryVerdict::GiveUp);
}
