package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// oftener is the factor for the frequency of operations that the environment names, or that a seed prefers.
const oftener = 10

// oftenHere are the operations that the environment names.
var oftenHere = sync.OnceValue(func() []string { return strings.Split(os.Getenv(envMore), ",") })

// themes are operations that find bugs only together. In each theme one component loses its state, and others
// continue. A seed may raise the frequency of one theme, so that a bug which needs all its operations is found
// within a minute.
var themes = [][]string{
	{"hub goes back", "hub update", "hub delete", "restart hub source", "informers stop or go on"},
	{"hub goes back", "hub create", "hub update", "cut connection", "leave ghost", "lose hub answer"},
	{"hub goes back", "copy broker's store", "restore broker's store", "hub delete", "restart hub source"},
	{"hub goes back", "hub create", "hub delete", "give up on", "lose answer", "partition"},
	{"restart hub source", "informers stop or go on", "hub delete", "hub down or up", "give up on", "lose answer"},
	{"lose broker's store", "copy broker's store", "restore broker's store", "hub create", "hub delete", "partition"},
	{"copy broker's store", "restore broker's store", "hub create", "hub delete", "hub down or up", "settle"},
	{"select", "lose answer", "give up on", "duplicate", "hub update", "hub delete"},
	{"quota", "hub create", "hub delete", "hub recreate", "shop create", "select"},
	{"hub create without an agent", "hub delete", "lose hub answer", "restart hub source", "informers stop or go on"},
	{"hub refuses a status", "hub update", "restart hub source", "hub down or up", "crash broker", "wait"},
	{"select", "restart agent", "hub update", "hub down or up", "restart hub source", "cut connection"},
}

// swarm chooses the preferred operations of a seed: those of a theme, random ones, or none.
func (k *shape) swarm(r *rand.Rand) (names []string) {
	switch r.IntN(4) {
	case 0:
	case 1:
		for range 2 + r.IntN(5) {
			names = append(names, k.operations[r.IntN(len(k.operations))].name)
		}
	default:
		for _, name := range k.themes[r.IntN(len(k.themes))] {
			if r.IntN(4) > 0 {
				names = append(names, name)
			}
		}
	}
	return names
}

// weights returns the weights of the operations for a seed, and their sum.
func (k *shape) weights(r *rand.Rand) (list []int, total int) {
	more := slices.Concat(oftenHere(), k.swarm(r))
	for _, o := range k.operations {
		w := o.weight
		if o.name != "run" && slices.Contains(more, o.name) {
			w *= oftener
		}
		list, total = append(list, w), total+w
	}
	return list, total
}

// shape is the kind of network and broker between the clients, and its operations.
type shape struct {
	operations []operation
	themes     [][]string
	// stateless: the broker is a stateless MQTT broker instead of Hawser's.
	stateless bool
	// mqtt: most clients use MQTT with the Hawser broker, the others gRPC.
	mqtt bool
	// replicas is the number of brokers over one store; 0: one broker with its own.
	replicas int
	// join: clusters join; nothing else happens.
	join bool
	// settles is the time until everything that was lost is sent again.
	settles time.Duration
}

var (
	brokered = &shape{operations: operations, themes: themes, settles: settleTime}
	spoken   = &shape{operations: operations, themes: themes, settles: settleTime, mqtt: true}
	bused    = &shape{operations: statelessOperations, themes: statelessThemes, stateless: true, settles: statelessSettleTime}
)

// script returns the operations of a seed.
func (k *shape) script(seed uint64) []op {
	r := rand.New(rand.NewPCG(seed, 1))
	each, total := k.weights(r)
	list := make([]op, 10+r.IntN(110))
	for i := range list {
		n := r.IntN(total)
		for j, o := range k.operations {
			if n -= each[j]; n < 0 {
				list[i] = op{o.name, r.Uint32(), r.Uint32()}
				break
			}
		}
	}
	return list
}

// result is the result of a script.
type result struct {
	broken *violation
	did    []string // by op: its effect, "" for none
	lines  []string // everything that happened
}

// play performs a script, lets the world settle, and checks it. Then released clusters are served again, and
// everything is checked again. If works wait for capacity at the end, it is checked that they do not wait longer.
func (k *shape) play(t *testing.T, seed uint64, list []op) (r result) {
	if k.join {
		return k.playJoin(t, seed, list)
	}
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, k)
		defer w.close()
		defer func() { r.broken, r.lines = w.broken, w.lines }()
		defer func() {
			if p := recover(); p != nil {
				w.fail("panic", "%v", p)
			}
		}()
		for _, o := range list {
			w.note("> %s", o)
			i := slices.IndexFunc(k.operations, func(p operation) bool { return p.name == o.name })
			w.pass(time.Millisecond)
			did := k.operations[i].do(w, o.a, o.b)
			synctest.Wait()
			w.note("> %s: %s", o.name, did)
			r.did = append(r.did, did)
			if w.broken != nil {
				return
			}
		}
		w.note("> the faults end")
		order := rand.New(rand.NewPCG(seed, 5))
		w.settleAll(order)
		w.checkRefused(order)
		w.check()
		for _, c := range clusters {
			if w.broken == nil && !w.source.selected[c] {
				w.note("> %s is served again", c)
				w.source.serve(c)
			}
		}
		w.settleAll(order)
		w.check()
		w.checkSynced(order)
	})
	return r
}

// minimise removes ops from a script while the same invariant still breaks.
func (k *shape) minimise(t *testing.T, seed uint64, list []op, invariant string) []op {
	breaks := func(list []op) bool {
		r := k.play(t, seed, list)
		return r.broken != nil && r.broken.invariant == invariant
	}
	for size := max(len(list)/2, 1); ; {
		smaller := false
		for i := 0; i < len(list); {
			without := slices.Delete(slices.Clone(list), i, min(i+size, len(list)))
			if breaks(without) {
				list, smaller = without, true
			} else {
				i += size
			}
		}
		switch {
		case size > 1:
			size /= 2
		case !smaller:
			return list
		}
	}
}

// printList prints a script with the effect of each op.
func printList(list []op, r result) string {
	var b strings.Builder
	for i, o := range list {
		did := ""
		if i < len(r.did) {
			did = r.did[i]
		}
		fmt.Fprintf(&b, "  %-26s %s\n", o.name, did)
	}
	return b.String()
}
