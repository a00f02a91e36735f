//! Whether every copy has what it should have. Looks, and changes nothing.

use block::Result;

use super::entry::ObjectKind;
use super::{Log, ObjectId, Vault};

/// Findings that are told; more are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Pages that are looked at before a checkpoint may come between.
const BATCH: u64 = 64;

/// What a check has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Pages that were looked at, each on every current copy.
    pub pages: u64,
    /// What is wrong, in words: the first [`FINDINGS_MAX`].
    pub wrong: Vec<String>,
    /// How much is wrong in all.
    pub count: u64,
    /// Whether nothing is lost: what one copy has wrong, another has right.
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
    /// Looks at both superblocks, and at every page that the map names, on every current copy, and at what the
    /// directory says of each. The log was looked at when the vault was opened. Nothing is changed by this; but what one
    /// copy has wrong and another has right, the next checkpoint of a vault that may be written writes
    /// again.
    ///
    /// # Errors
    /// What a disk says that does not answer.
    pub async fn check(&self) -> Result<Findings> {
        let mut findings = Findings { repairable: true, ..Findings::default() };
        let inner = &self.0;
        for damaged in inner.replicas.damaged_superblocks().await? {
            findings.note(format!("superblock on {damaged}; the other one counts"));
        }
        let end = inner.replicas.geometry.all_pages();
        let mut number = 0;
        while number < end {
            // A checkpoint in the midst of it would move what is looked at.
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
            // The page of the map above it is told of where its own turn comes.
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
