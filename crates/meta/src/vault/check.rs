//! Verification of every copy of a vault, without writes.

use block::Result;

use super::entry::ObjectKind;
use super::{Log, ObjectId, Vault};

/// Maximum number of faults that a check of a vault describes; further faults are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Number of pages that a check verifies in one batch. A checkpoint may run between two batches.
const BATCH: u64 = 64;

/// Result of the verification of a vault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Number of pages that the check verified, each on every current copy of the vault.
    pub pages: u64,
    /// Descriptions of the first [`FINDINGS_MAX`] faults.
    pub wrong: Vec<String>,
    /// Number of all faults, including those that are not described.
    pub count: u64,
    /// Whether no data are lost: each page that is damaged on one copy of the vault is intact on another copy.
    pub repairable: bool,
}

impl Findings {
    fn note(&mut self, words: String) {
        self.count += 1;
        if self.wrong.len() < FINDINGS_MAX {
            self.wrong.push(words);
        }
    }
}

impl Vault {
    /// Verifies every current copy of the vault: both superblocks, every page to which the map of pages points, and the
    /// log objects. Opening has verified the log of the vault. Writes nothing; but the next checkpoint of a vault that
    /// is open for writing rewrites pages that are damaged on one copy and intact on another.
    ///
    /// # Errors
    /// The error of a disk that cannot be read.
    pub async fn check(&self) -> Result<Findings> {
        let mut findings = Findings { repairable: true, ..Findings::default() };
        let inner = &self.0;
        for damaged in inner.replicas.damaged_superblocks().await? {
            findings.note(format!("superblock on {damaged}; the vault uses the other superblock"));
        }
        let end = inner.replicas.geometry.all_pages();
        let mut number = 0;
        while number < end {
            // A checkpoint during a batch would write new versions of the pages that are being verified.
            let _turn = inner.checkpointing.lock().await;
            for _ in 0..BATCH.min(end - number) {
                self.check_page(number, &mut findings).await?;
                number += 1;
            }
            inner.env.give_way().await;
        }
        let logs: Vec<_> = {
            let directory = inner.directory.borrow();
            let logs = directory.all().filter(|entry| entry.kind == ObjectKind::Log);
            logs.map(|entry| ObjectId(entry.number)).collect()
        };
        for id in logs {
            if let Err(error) = Log::open(self, id).await {
                findings.repairable = false;
                findings.note(error.to_string());
            }
        }
        Ok(findings)
    }

    async fn check_page(&self, number: u64, findings: &mut Findings) -> Result<()> {
        let inner = &self.0;
        let pointer = match inner.tree.pointer(&inner.replicas, number).await {
            Ok(None) => return Ok(()),
            Ok(Some(pointer)) => pointer,
            // The damaged page of the map above this page is reported when the check reaches that map page.
            Err(_) => return Ok(()),
        };
        findings.pages += 1;
        let mut right = 0;
        for copy in inner.replicas.current() {
            match inner.replicas.page_of(copy, number, &pointer).await {
                Ok(Ok(_)) => right += 1,
                Ok(Err(words)) => findings.note(format!("page {number} on {words}")),
                Err(error) => findings.note(format!("page {number}: {error}")),
            }
        }
        if right == 0 {
            findings.repairable = false;
        } else if right < inner.replicas.current().len() {
            inner.tree.note_mend(number);
        }
        Ok(())
    }
}
