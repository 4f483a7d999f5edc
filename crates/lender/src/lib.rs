//! lender
