//! Keeping a worker off its waker's CPU.
//!
//! Some schedulers put a woken thread on the CPU of its waker although others are idle, to save power or
//! to pack virtual machines; there it stops the caller in order to help it, and the two take turns (measured:
//! 150 us instead of 60 us for two chunks of 50 us). So before a caller wakes a worker, it takes its own CPU
//! from the worker's affinity. All here is advice: where it fails the pool is slower, not wrong.

#[cfg(target_os = "linux")]
mod linux {
    use libc::cpu_set_t;
    use std::mem;

    /// What one worker may run on.
    pub(in super::super) struct Placement {
        thread: libc::pid_t,
        /// As the worker found it, or as somebody else set it since.
        allowed: cpu_set_t,
        /// As set here.
        narrowed: cpu_set_t,
        avoided: Option<usize>,
    }

    impl Placement {
        /// The placement of the current thread.
        pub(in super::super) fn of_current() -> Option<Placement> {
            // SAFETY: takes nothing and returns a number.
            let thread = unsafe { libc::gettid() };
            let allowed = affinity(thread)?;
            Some(Placement { thread, allowed, narrowed: allowed, avoided: None })
        }

        /// Keeps the worker off the current thread's CPU, and off no other. Two system calls, or none if
        /// that is how it is already.
        pub(in super::super) fn avoid_this_cpu(&mut self) {
            // SAFETY: takes nothing and returns a number.
            let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok();
            let (Some(here), false) = (here, here == self.avoided) else {
                return;
            };
            let Some(present) = affinity(self.thread) else {
                return;
            };
            // SAFETY: compares two bit sets.
            if !unsafe { libc::CPU_EQUAL(&present, &self.narrowed) } {
                self.allowed = present;
            }
            let mut narrowed = self.allowed;
            if here < 8 * mem::size_of::<cpu_set_t>() {
                // SAFETY: `here` is below the number of bits in the set.
                unsafe { libc::CPU_CLR(here, &mut narrowed) };
            }
            // Fails where no usable CPU is left; then nothing changes, and there is nothing to gain.
            // SAFETY: the set is readable and as long as said.
            if unsafe { libc::sched_setaffinity(self.thread, mem::size_of::<cpu_set_t>(), &narrowed) } == 0 {
                self.narrowed = narrowed;
                self.avoided = Some(here);
            }
        }
    }

    fn affinity(thread: libc::pid_t) -> Option<cpu_set_t> {
        // SAFETY: a bit set for which all zeros is a value.
        let mut set: cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the set is writable and as long as said.
        let rc = unsafe { libc::sched_getaffinity(thread, mem::size_of::<cpu_set_t>(), &mut set) };
        (rc == 0).then_some(set)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn cpus(set: &cpu_set_t) -> Vec<usize> {
            // SAFETY: `cpu` is below the number of bits in the set.
            (0..8 * mem::size_of::<cpu_set_t>()).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, set) }).collect()
        }

        #[test]
        fn only_the_present_cpu_is_avoided_and_changes_by_others_are_kept() {
            // On a thread of its own, whose affinity is no other test's.
            std::thread::spawn(|| {
                let mut placement = Placement::of_current().unwrap();
                let allowed = cpus(&placement.allowed);
                if allowed.len() == 1 {
                    placement.avoid_this_cpu();
                    assert_eq!(cpus(&affinity(0).unwrap()), allowed);
                    return;
                }
                for _ in 0..3 {
                    placement.avoid_this_cpu();
                    let avoided = placement.avoided.unwrap();
                    let others: Vec<_> = allowed.iter().copied().filter(|&cpu| cpu != avoided).collect();
                    assert_eq!(cpus(&affinity(0).unwrap()), others);
                    // SAFETY: takes nothing and returns a number.
                    assert_ne!(unsafe { libc::sched_getcpu() } as usize, avoided, "moved at once");
                }
                // Somebody restricts the thread to one CPU; that is not undone. (With two CPUs it has to be
                // the avoided one: the other is all that is left, so there would be no change to see.)
                let avoided = placement.avoided.unwrap();
                let third = allowed.iter().copied().find(|&cpu| allowed.len() > 2 && cpu != avoided);
                let only = third.unwrap_or(avoided);
                // SAFETY: a bit set for which all zeros is a value.
                let mut one: cpu_set_t = unsafe { mem::zeroed() };
                // SAFETY: `only` is a CPU of such a set; the set is readable and as long as said.
                let rc = unsafe {
                    libc::CPU_SET(only, &mut one);
                    libc::sched_setaffinity(0, mem::size_of::<cpu_set_t>(), &one)
                };
                assert_eq!(rc, 0);
                placement.avoid_this_cpu();
                assert_eq!(cpus(&affinity(0).unwrap()), [only]);
            })
            .join()
            .unwrap();
        }
    }
}

#[cfg(target_os = "linux")]
pub(super) use linux::Placement;

#[cfg(not(target_os = "linux"))]
pub(super) struct Placement;

#[cfg(not(target_os = "linux"))]
impl Placement {
    pub(super) fn of_current() -> Option<Placement> {
        None
    }

    pub(super) fn avoid_this_cpu(&mut self) {}
}
