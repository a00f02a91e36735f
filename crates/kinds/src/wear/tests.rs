//! Tests of `wear`: its counts over kills, power cuts and growth.
