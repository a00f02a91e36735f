//! Tests of an open pool: its model, crashes, and the space that comes back.

mod accounts;
mod basics;
mod chains;
mod concurrent;
mod copies;
mod crashes;
mod damage;
mod discards;
mod doubles;
mod folds;
mod full;
mod grown;
mod history;
mod machine;
mod model;
mod rollback;
mod rules;
mod scene;
