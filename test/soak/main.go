// Command soak runs a fleet under load and faults. It checks that nothing is lost, goes back or grows.
// README.md in this directory has the schedule.
//
//	make soak                       ten minutes
//	make soak SOAK=1h SEED=7        an hour, with the faults of seed 7
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	length := flag.Duration("for", 10*time.Minute, "how long load and faults last until growth is judged, at least 4m; the last storm and the end take two minutes more")
	seed := flag.Uint64("seed", 0, "decides faults and load; 0 means any")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *length, *seed); err != nil {
		fmt.Fprintf(os.Stderr, "soak: seed %d: %v\n", *seed, err)
		os.Exit(1)
	}
}
