/* A job's generations and checkpoints, for Spin: a coordinator that may be killed between any two
 * writes, workers that may be killed, stopped and waked, reports that come late, a step that is rolled
 * back. Checked over every order in which these can happen, as far as the numbers below go:
 *
 *   1. no stale write is accepted: a report counts only if it comes from the process that serves the
 *      stage in the current generation; a checkpoint is of one history of steps; no step counts twice
 *   2. a committed checkpoint is never lost: its slices stay in the store until a later one is
 *      committed, and every generation begins with the last one
 *   3. every failure leads to progress or a reported stop: when nothing can happen any more, the job
 *      is done, or has failed in a sentence, or waits for workers that are not there
 *
 *   coordinator, as coordinator/job_run.h draws it        worker
 *
 *   RECOVERING ──▶ TELLING ──▶ RUNNING ──▶ DONE            idle ──assign──▶ serves (generation, stage)
 *       ▲   enough    │  all told  │ all finished            ▲                 │ step, slice, report
 *       │   workers   │            │                         └── stop, kill ───┘
 *       └─────────────┴────────────┴──▶ FAILED (the same fault of its own, twice at one step)
 *          a fault
 *
 * What the model leaves out: several jobs, time (whatever has a deadline may pass it as soon as it is
 * due), the tensors themselves (a stage steps when its neighbours of the same generation have come as
 * far), holders of slices (only the store counts).
 *
 * MISTAKE plants one, so that a test can see it found: 1 does not look at a report's generation, 2
 * tells workers of a generation before that is durable, 3 clears the store of what no committed
 * checkpoint names, though one on its way does, 4 does not notice a stopped worker, 5 commits a
 * checkpoint of steps that were rolled back while it was verified. That a checkpoint may have slices
 * of several generations is none: a step's state is the same in each.
 */
#ifndef MISTAKE
#define MISTAKE 0
#endif

#define W 3      /* workers */
#define K 2      /* stages */
#define LAST 3   /* steps of the job */
#define NONE 9

#ifndef KILLS
#define KILLS 1  /* of workers */
#endif
#ifndef STOPS
#define STOPS 1
#endif
#ifndef CRASHES
#define CRASHES 1 /* of the coordinator */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 1
#endif
#ifndef OWN
#define OWN 0    /* faults of a worker's own */
#endif

mtype = { RECOVERING, TELLING, RUNNING, DONE, FAILED, alive, stopped, dead };

/* ---- Workers: what each process knows. */
mtype health[W] = alive;
bit registered[W] = 1;  /* with the coordinator's present process */
bit serves[W];
byte wgen[W], wstage[W], wstep[W], wstart[W], whistory[W];
byte told[W];           /* steps reported */

/* ---- The coordinator's memory, lost when it is killed. */
bit up = 1;
mtype state = RECOVERING;
byte gen, history, merged;
byte place[K] = NONE;
byte part[K];            /* last step each stage has reported in this generation */
byte slice_step, slices; /* a checkpoint on its way: of which step, which stages' slices have come */
byte slice_history[K];
byte verifying;          /* step; 0: nothing is being verified */
bit verified;            /* … it has been, and is whole */
byte verifying_history;
byte own_step = NONE;    /* where a worker failed by itself the last time */

/* ---- The database. */
mtype d_state = RECOVERING;
byte d_gen, d_history, d_merged;
byte d_point, d_base; /* steps after d_point, up to d_base, are rolled back: left out for good */
byte d_place[K] = NONE;
byte d_checkpoint, d_checkpoint_history;

/* ---- The store: slices by history, step and stage. */
#define blob(h, s, k) store[((h) * (LAST + 1) + (s)) * K + (k)]
bit store[2 * (LAST + 1) * K];

/* ---- What happens to it all. */
byte kills, stops, crashes, rollbacks, own_faults; /* still to come */
bit wakes;              /* somebody wakes a stopped worker, some time */

/* For use within one atomic step only: not part of the state. */
hidden byte w, g, k, s, h, next_start;

/* Reports under way, with what their sender was. */
chan reports = [1] of { byte /* worker */, byte /* generation */, byte /* stage */,
                        byte /* step, and its slice */, byte /* history */ };
/* Assignments under way. */
chan assign[W] = [1] of { byte /* generation */, byte /* stage */, byte /* start */, byte /* history */ };

#define beats(w) (health[w] == alive)
/* Of stage k: somebody serves it in this generation and has come as far as `s`. */
#define peer(k, g, s) \
  ((beats(0) && serves[0] && wstage[0] == k && wgen[0] == g && wstep[0] >= s) || \
   (beats(1) && serves[1] && wstage[1] == k && wgen[1] == g && wstep[1] >= s) || \
   (beats(2) && serves[2] && wstage[2] == k && wgen[2] == g && wstep[2] >= s))
#define free(w) (beats(w) && registered[w] && !serves[w] && len(assign[w]) == 0)
#define num_free (free(0) + free(1) + free(2))
#define num_beating (beats(0) + beats(1) + beats(2))

/* A write is accepted: it must be the current generation's own. */
inline check_sender(w, g, k) {
  assert(g == gen && place[k] == w && history == whistory[w])
}

inline commit_checkpoint(s, h) {
  d_step {
    assert(h == d_history);                                 /* of this history */
    assert(blob(h, s, 0) && blob(h, s, 1));                 /* whole */
    assert(s >= d_checkpoint);
    d_checkpoint = s;
    d_checkpoint_history = h
  }
}

inline forget_slices() { slice_step = 0; slices = 0; slice_history[0] = 0; slice_history[1] = 0 }

inline begin_generation() {
  d_step {
    part[0] = 0; part[1] = 0;
    forget_slices()
  }
}

inline fault() { state = RECOVERING; d_state = RECOVERING }

inline save_generation() {
  d_step {
    d_gen = gen; d_state = TELLING;
    d_place[0] = place[0]; d_place[1] = place[1]
  }
}

inline tell() {
  d_step {
    assert(blob(d_checkpoint_history, d_checkpoint, 0) || d_checkpoint == 0);  /* never lost */
    assert(blob(d_checkpoint_history, d_checkpoint, 1) || d_checkpoint == 0);
    next_start = (d_checkpoint > d_base -> d_checkpoint : d_base);
    if :: health[place[0]] != dead -> assign[place[0]]!gen, 0, next_start, history :: else fi;
    if :: health[place[1]] != dead -> assign[place[1]]!gen, 1, next_start, history :: else fi
  }
}

inline place_on(a, b) {
  d_step { gen++; place[0] = a; place[1] = b };
  begin_generation()
}

inline count_step(k, s) {
  d_step {
    if :: s > part[k] -> part[k] = s :: else fi;
    do
    :: part[0] > merged && part[1] > merged -> merged++; d_merged = merged
    :: else -> break
    od;
    if :: merged == LAST -> state = DONE; d_state = DONE :: else fi
  }
}

inline collect_slice(k, s, h) {
  d_step {
    if
    :: s < LAST && s > d_checkpoint && verifying == 0 ->
       if :: slice_step != s -> slice_step = s; slices = 0 :: else fi;
       slices = slices | (1 << k);
       slice_history[k] = h;
       if
       :: slices == 3 ->
          assert(slice_history[0] == slice_history[1]);
          verifying = s; verifying_history = h; forget_slices()
       :: else
       fi
    :: else
    fi
  }
}

proctype Coordinator() {
end:
  do
  /* Enough free workers: a new generation, durable before anybody hears of it. */
  :: atomic {
       up && state == RECOVERING && num_free >= K ->
       if
       :: free(0) && free(1) -> place_on(0, 1)
       :: else ->
          if
          :: free(0) && free(2) -> place_on(0, 2)
          :: else -> place_on(1, 2)
          fi
       fi;
#if MISTAKE == 2
       tell();
#else
       save_generation();
#endif
       state = TELLING
     }
  :: atomic {
       up && state == TELLING ->
#if MISTAKE == 2
       save_generation();
#else
       tell();
#endif
       d_step { state = RUNNING; d_state = RUNNING }
     }
  /* A placed worker is gone, silent, or serves this generation no more. */
  :: atomic {
       up && state == RUNNING &&
       (health[place[0]] == dead || health[place[1]] == dead
#if MISTAKE != 4
        || health[place[0]] == stopped || health[place[1]] == stopped
#endif
        || (registered[place[0]] && len(assign[place[0]]) == 0 && (!serves[place[0]] || wgen[place[0]] != gen))
        || (registered[place[1]] && len(assign[place[1]]) == 0 && (!serves[place[1]] || wgen[place[1]] != gen))) ->
       fault()
     }
  /* After a restart: whoever does not come back in time is lost. */
  :: atomic {
       up && state == RUNNING && !(registered[place[0]] && registered[place[1]]) ->
       fault()
     }
  /* Reports. */
  :: atomic {
       up && len(reports) > 0 ->
       reports?w, g, k, s, h;
       if
#if MISTAKE == 1
       :: state == RUNNING && registered[w] ->
#else
       :: state == RUNNING && registered[w] && g == gen && place[k] == w ->
#endif
          check_sender(w, g, k);
          count_step(k, s);
          collect_slice(k, s, h)
       :: else /* stale: dropped */
       fi
     }
  /* The slices are verified in the background; then the checkpoint is committed, with the old one's
     end, at once. */
  :: atomic {
       up && verifying != 0 && !verified ->
       if
       :: blob(verifying_history, verifying, 0) && blob(verifying_history, verifying, 1) ->
          verified = 1
       :: else -> d_step { verifying = 0; verifying_history = 0 }
       fi
     }
  :: atomic {
       up && verified ->
       if
       :: verifying > d_checkpoint &&
#if MISTAKE != 5
          !(verifying > d_point && verifying <= d_base) &&
#endif
          state != DONE && state != FAILED ->
          commit_checkpoint(verifying, verifying_history)
       :: else
       fi;
       d_step { verifying = 0; verified = 0; verifying_history = 0 }
     }
  od
}

/* Slices that nothing refers to are removed, at any time: neither the last checkpoint, nor one that is
   on its way. */
#if MISTAKE == 3
#define needed(h, s) ((s) == d_checkpoint && (h) == d_checkpoint_history)
#else
#define needed(h, s) ((s) >= d_checkpoint)
#endif
#define dirty(h, s, k) (blob(h, s, k) && !needed(h, s))
#define clean(h, s) \
  if :: !needed(h, s) -> blob(h, s, 0) = 0; blob(h, s, 1) = 0 :: else fi

proctype Cleaner() {
end:
  do
  :: d_step {
       up && (dirty(0, 1, 0) || dirty(0, 1, 1) || dirty(0, 2, 0) || dirty(0, 2, 1) ||
              dirty(1, 1, 0) || dirty(1, 1, 1) || dirty(1, 2, 0) || dirty(1, 2, 1)) ->
       clean(0, 1); clean(0, 2); clean(1, 1); clean(1, 2)
     }
  od
}

inline end_stage(w) {
  d_step {
    serves[w] = 0; wstage[w] = 0; wstep[w] = 0; wstart[w] = 0; whistory[w] = 0; told[w] = 0
  }
}

#define serves_it(w, g, k) (serves[w] && wgen[w] == g && wstage[w] == k)

proctype Worker(byte me) {
end:
  do
  /* Told to serve. Of an older generation than it has served: refused. */
  :: atomic {
       beats(me) && len(assign[me]) > 0 ->
       assign[me]?g, k, s, h;
       if
       :: g > wgen[me] ->
          assert(!serves_it(0, g, k) && !serves_it(1, g, k) && !serves_it(2, g, k));
          d_step {
            serves[me] = 1; wgen[me] = g; wstage[me] = k; wstep[me] = s; wstart[me] = s;
            whistory[me] = h; told[me] = s
          }
       :: else
       fi
     }
  /* A step, which needs the other stage of this generation; its slice goes to the store. */
  :: atomic {
       beats(me) && serves[me] && wstep[me] < LAST &&
       peer(1 - wstage[me], wgen[me], wstep[me]) ->
       wstep[me]++;
       if :: wstep[me] < LAST -> blob(whistory[me], wstep[me], wstage[me]) = 1 :: else fi
     }
  /* Then it says so, for as long as nobody has heard it. */
  :: atomic {
       beats(me) && serves[me] && told[me] < wstep[me] && registered[me] && up && len(reports) == 0 ->
       told[me]++;
       reports!me, wgen[me], wstage[me], told[me], whistory[me]
     }
  /* A heartbeat's answer: this stage is nobody's any more. */
  :: atomic {
       beats(me) && serves[me] && registered[me] && up && state != TELLING &&
       !(wgen[me] == gen && place[wstage[me]] == me && state == RUNNING) ->
       end_stage(me)
     }
  /* The coordinator has been started again: registers, tells what it serves and reported. */
  :: atomic {
       beats(me) && up && !registered[me] ->
       registered[me] = 1;
       if :: serves[me] -> told[me] = wstart[me] :: else fi
     }
  od
}

proctype Faults() {
end:
  do
  :: atomic {
       kills > 0 && state != DONE && state != FAILED ->
       kills--;
       select(w : 0 .. W - 1);
       if
       :: health[w] == alive ->
          health[w] = dead; end_stage(w); wgen[w] = 0; registered[w] = 0;
          do :: len(assign[w]) > 0 -> assign[w]?_, _, _, _ :: else -> break od
       :: else
       fi
     }
  :: atomic {
       stops > 0 && state != DONE && state != FAILED ->
       stops--;
       select(w : 0 .. W - 1);
       if :: health[w] == alive -> health[w] = stopped :: else fi
     }
  :: atomic { health[0] == stopped && wakes -> health[0] = alive }
  :: atomic { health[1] == stopped && wakes -> health[1] = alive }
  :: atomic { health[2] == stopped && wakes -> health[2] = alive }
  /* The coordinator is killed: what is in its memory and on its way to it is lost. */
  :: atomic {
       crashes > 0 && up && state != DONE && state != FAILED ->
       crashes--;
       d_step {
         up = 0; registered[0] = 0; registered[1] = 0; registered[2] = 0;
         part[0] = 0; part[1] = 0; forget_slices(); verifying = 0; verified = 0; verifying_history = 0
       };
       do :: len(reports) > 0 -> reports?_, _, _, _, _ :: else -> break od
     }
  :: atomic {
       !up ->
       d_step {
         up = 1; gen = d_gen; history = d_history; merged = d_merged;
         place[0] = d_place[0]; place[1] = d_place[1];
         state = (d_state == TELLING -> RECOVERING : d_state)
       }
     }
  /* The loss is no number: back to the last checkpoint, the steps since are left out. */
  :: atomic {
       rollbacks > 0 && up && state == RUNNING && beats(place[0]) && registered[place[0]] &&
       serves[place[0]] && wgen[place[0]] == gen && wstep[place[0]] > 0 && wstep[place[0]] < LAST &&
       !(wstep[place[1]] == LAST && serves[place[1]] && wgen[place[1]] == gen) ->
       rollbacks--;
       d_step {
         history++; d_history = history; d_point = d_checkpoint;
         merged = (wstep[place[0]] > merged -> wstep[place[0]] : merged);
         if
         :: serves[place[1]] && wgen[place[1]] == gen && wstep[place[1]] > merged ->
            merged = wstep[place[1]]
         :: else
         fi;
         d_merged = merged; d_base = merged;
         state = RECOVERING; d_state = RECOVERING
       }
     }
  /* A fault of a worker's own: memory, disk. Twice at one step is one too many. */
  :: atomic {
       own_faults > 0 && up && state == RUNNING && beats(place[0]) && serves[place[0]] &&
       wgen[place[0]] == gen ->
       own_faults--;
       end_stage(place[0]);
       if
       :: own_step == merged -> d_step { state = FAILED; d_state = FAILED }
       :: else -> own_step = merged; fault()
       fi
     }
  od
}

/* When nothing else can happen. */
proctype Judge() {
  timeout;
  assert(state == DONE || state == FAILED || (state == RECOVERING && num_beating < K));
  assert(d_state == state);
  assert(d_checkpoint == 0 ||
         (blob(d_checkpoint_history, d_checkpoint, 0) && blob(d_checkpoint_history, d_checkpoint, 1)));
}

init {
  atomic {
    select(kills : 0 .. KILLS); select(stops : 0 .. STOPS); select(crashes : 0 .. CRASHES);
    select(rollbacks : 0 .. ROLLBACKS); select(own_faults : 0 .. OWN); select(wakes : 0 .. 1);
    run Worker(0); run Worker(1); run Worker(2);
    run Coordinator(); run Cleaner(); run Faults(); run Judge()
  }
}
