//! Return codes, modes and record types, with the names that `rvm_return` and similar functions return.

use std::ffi::CStr;

/// Return code of a call. The values are the original's, except for those of `shared.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum ReturnCode {
    Success = 0,
    NotInitialised = 200,
    Internal = 201,
    Io = 202,
    Log = 204,
    LogVersionSkew = 205,
    Mode = 206,
    NameTooLong = 207,
    NoMemory = 208,
    NotMapped = 209,
    Offset = 210,
    Options = 211,
    Overlap = 212,
    Pager = 213,
    Range = 214,
    Region = 215,
    Statistics = 218,
    StatisticsVersionSkew = 219,
    Transaction = 222,
    TooBig = 223,
    Uncommitted = 224,
    VersionSkew = 225,
    MemoryOverlap = 226,
    SegmentHeader = 2000,
    // Codes that the original does not have.
    Handle = 2100,
    Died = 2101,
    TimedOut = 2102,
    Lost = 2103,
    Gone = 2104,
    Unknown = 2105,
    Lock = 2106,
    NotHeld = 2107,
    Expired = 2108,
    Stray = 2109,
    NoHeap = 2110,
    NoRoom = 2111,
    Block = 2112,
    Damaged = 2113,
    Served = 2114,
}

/// Names of codes 200 to 226, in order; 203 is unused, and the original prints it so.
const CODE_NAMES: [&CStr; 27] = [
    c"RVM_EINIT",
    c"RVM_EINTERNAL",
    c"RVM_EIO",
    c"RVM_EPLACEHOLDER",
    c"RVM_ELOG",
    c"RVM_ELOG_VERSION_SKEW",
    c"RVM_EMODE",
    c"RVM_ENAME_TOO_LONG",
    c"RVM_ENO_MEMORY",
    c"RVM_ENOT_MAPPED",
    c"RVM_EOFFSET",
    c"RVM_EOPTIONS",
    c"RVM_EOVERLAP",
    c"RVM_EPAGER",
    c"RVM_ERANGE",
    c"RVM_EREGION",
    c"RVM_EREGION_DEF",
    c"RVM_ESRC",
    c"RVM_ESTATISTICS",
    c"RVM_ESTAT_VERSION_SKEW",
    c"RVM_ETERMINATED",
    c"RVM_ETHREADS",
    c"RVM_ETID",
    c"RVM_ETOO_BIG",
    c"RVM_EUNCOMMIT",
    c"RVM_EVERSION_SKEW",
    c"RVM_EVM_OVERLAP",
];

/// Names of codes from 2100 on, in order.
const SHARED_NAMES: [&CStr; 15] = [
    c"RVM_EHANDLE",
    c"RVM_EDIED",
    c"RVM_ETIMEDOUT",
    c"RVM_ELOST",
    c"RVM_EGONE",
    c"RVM_EUNKNOWN",
    c"RVM_ELOCK",
    c"RVM_ENOT_HELD",
    c"RVM_EEXPIRED",
    c"RVM_ESTRAY",
    c"RVM_ENO_HEAP",
    c"RVM_ENO_ROOM",
    c"RVM_EBLOCK",
    c"RVM_EDAMAGED",
    c"RVM_ESERVED",
];

const MODE_NAMES: [&CStr; 4] = [c"restore", c"no_restore", c"flush", c"no_flush"];
const TYPE_NAMES: [&CStr; 4] = [
    c"rvm_region_id",
    c"rvm_options_id",
    c"rvm_tid_id",
    c"rvm_statistics_id",
];

/// The name of a return code.
pub(crate) fn code_name(code: i32) -> &'static CStr {
    match code {
        0 => c"RVM_SUCCESS",
        2000 => c"RVM_ESEGMENT_HDR",
        code => nth(&CODE_NAMES, code, 200)
            .or_else(|| nth(&SHARED_NAMES, code, 2100))
            .unwrap_or(c"Invalid RVM return code"),
    }
}

/// The name of a mode.
pub(crate) fn mode_name(mode: i32) -> &'static CStr {
    nth(&MODE_NAMES, mode, 140).unwrap_or(c"Invalid RVM mode")
}

/// The name of a record's type.
pub(crate) fn type_name(id: i32) -> &'static CStr {
    match id {
        45 => c"rvm_join_id",
        46 => c"rvm_far_options_id",
        id => nth(&TYPE_NAMES, id, 40).unwrap_or(c"Invalid RVM structure id"),
    }
}

fn nth(names: &[&'static CStr], value: i32, first: i32) -> Option<&'static CStr> {
    let index = usize::try_from(value.checked_sub(first)?).ok()?;
    names.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_its_name() {
        for (code, name) in [
            (ReturnCode::Success, c"RVM_SUCCESS"),
            (ReturnCode::NotInitialised, c"RVM_EINIT"),
            (ReturnCode::Log, c"RVM_ELOG"),
            (ReturnCode::Range, c"RVM_ERANGE"),
            (ReturnCode::StatisticsVersionSkew, c"RVM_ESTAT_VERSION_SKEW"),
            (ReturnCode::Transaction, c"RVM_ETID"),
            (ReturnCode::MemoryOverlap, c"RVM_EVM_OVERLAP"),
            (ReturnCode::SegmentHeader, c"RVM_ESEGMENT_HDR"),
            (ReturnCode::Handle, c"RVM_EHANDLE"),
            (ReturnCode::Unknown, c"RVM_EUNKNOWN"),
            (ReturnCode::Expired, c"RVM_EEXPIRED"),
            (ReturnCode::NoHeap, c"RVM_ENO_HEAP"),
            (ReturnCode::Served, c"RVM_ESERVED"),
        ] {
            assert_eq!(code_name(code as i32), name);
        }
        assert_eq!(mode_name(143), c"no_flush");
        assert_eq!(type_name(43), c"rvm_statistics_id");
        assert_eq!(type_name(45), c"rvm_join_id");
        assert_eq!(type_name(46), c"rvm_far_options_id");
    }

    #[test]
    fn a_value_without_a_name_is_reported_as_invalid() {
        for wrong in [-1, 1, 199, 227, 2099, 2115, i32::MIN, i32::MAX] {
            assert_eq!(code_name(wrong), c"Invalid RVM return code");
        }
        assert_eq!(mode_name(139), c"Invalid RVM mode");
        assert_eq!(type_name(44), c"Invalid RVM structure id");
    }
}
