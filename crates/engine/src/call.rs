//! A client's request as a future.

use std::rc::Rc;

use block::{Done, OneShot, Op, Request, Result};

use super::{Engine, Portal, Sink};

impl Engine {
    /// Carries out a client's request: waits until it is admitted and done. If the future is dropped, a request that
    /// was admitted goes on.
    pub async fn call(&self, portal: &Portal, op: Op) -> Done {
        let answer = Rc::new(OneShot::default());
        self.admit(portal, op, &answer, 0).await;
        answer.wait().await
    }

    /// Begins a client's request like [`Engine::submit`], once the engine has its reserve free.
    pub async fn admit(
        &self,
        portal: &Portal,
        mut op: Op,
        sink: &Rc<impl Sink + 'static>,
        token: u64,
    ) {
        while let Err(back) = self.submit(portal, op, sink.clone(), token) {
            op = back;
            self.wait_capacity(portal, &op).await;
        }
    }
}

impl Sink for OneShot<Done> {
    fn done(&self, _: u64, request: Request, result: Result<()>) {
        self.set(Done { op: request.op, result });
    }
}
