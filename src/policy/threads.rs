//! The threads that compile and evaluate. Each has its own compiled programs, so that none is ever dropped on a small
//! stack.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cel::Env;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::cache::Cache;
use super::program::Program;
use super::{Input, Question, Roots};
use crate::places::Held;
use crate::run::policy::Found;

/// Address space for the stack of each thread; what is not used costs nothing.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// How long one tenant's work goes on before others have their turn. Whoever asked asks again for the rest.
const SLICE: Duration = Duration::from_millis(50);

/// One piece of work.
#[derive(Debug)]
pub(super) struct Job {
    /// Its place, which the next one gets when it is done, also when nobody waits for it any longer.
    pub(super) place: Held,
    /// Nobody waits for it any longer.
    pub(super) until: Instant,
    pub(super) work: Work,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    /// Compile, and say what is wrong: with the first ones, as far as there is time.
    Check { sources: Arc<[(String, Roots)]>, from: usize, answer: oneshot::Sender<Vec<Option<String>>> },
    /// Evaluate: the first ones, as far as there is time.
    Judge { questions: Arc<[Question]>, from: usize, input: Input, answer: oneshot::Sender<Vec<Found>> },
}

/// As many threads as there are cores, two to four.
pub(super) fn count() -> usize {
    thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4))
}

/// Starts so many threads.
pub(super) fn start(count: usize, queue: mpsc::Receiver<Job>) -> io::Result<()> {
    let queue = Arc::new(Mutex::new(queue));
    for number in 0..count {
        let queue = Arc::clone(&queue);
        thread::Builder::new()
            .name(format!("expressions-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(&queue))?;
    }
    Ok(())
}

fn work(queue: &Mutex<mpsc::Receiver<Job>>) {
    let mut worker = Worker::new();
    loop {
        // Only this one waits for the next job; the others wait for their turn to.
        let next = queue.lock().blocking_recv();
        let Some(job) = next else { return };
        // The library must not take a thread away from everybody.
        if catch_unwind(AssertUnwindSafe(|| worker.carry_out(job))).is_err() {
            tracing::error!("evaluating an expression panicked");
            worker = Worker::new();
        }
    }
}

struct Worker {
    env: Arc<Env>,
    programs: Cache<Result<Arc<Program>, String>>,
}

impl Worker {
    fn new() -> Self {
        // Optional values would be a second way to say that a field is missing.
        Self { env: Arc::new(Env::stdlib().with_optional_support(false)), programs: Cache::default() }
    }

    fn carry_out(&mut self, job: Job) {
        let Job { until, work, place } = job;
        let since = Instant::now();
        let is_over = |now: Instant| now > until || now.duration_since(since) > SLICE;
        match work {
            Work::Check { sources, from, answer } => {
                let mut faults = Vec::new();
                for (source, roots) in sources.iter().skip(from) {
                    if answer.is_closed() || is_over(Instant::now()) {
                        break;
                    }
                    let compiled = self.program(source);
                    faults.push(compiled.and_then(|program| program.looks_only_at(*roots)).err());
                }
                drop(place);
                // Whoever asked may have stopped waiting.
                drop(answer.send(faults));
            }
            Work::Judge { questions, from, input, answer } => {
                let mut found = Vec::new();
                for question in questions.iter().skip(from) {
                    if answer.is_closed() || is_over(Instant::now()) {
                        break;
                    }
                    found.push(match self.program(&question.when) {
                        Ok(program) => program.evaluate(&self.env, (&input, question.trigger), until),
                        Err(fault) => Found::Failed(fault),
                    });
                }
                drop(input);
                drop(place);
                drop(answer.send(found));
            }
        }
    }

    fn program(&mut self, source: &str) -> Result<Arc<Program>, String> {
        let env = &self.env;
        let compile = || Program::compile(env, source).map(Arc::new);
        self.programs.get_or(source, compile, |compiled| compiled.as_ref().map_or(0, |program| program.bytes()))
    }
}
