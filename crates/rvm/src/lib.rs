//! rvm
