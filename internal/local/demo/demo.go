// Package demo is `hawser demo`: it builds everything from the checkout, runs a
// hub, two managed clusters and Hawser between them, applies a first work, shows
// what becomes of it, and keeps it all running for the person who watches.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/local/fleet"
)

// Demo is one run.
type Demo struct {
	// Root is the repository, Dir where the demo keeps its state; Dir is
	// emptied at the start.
	Root, Dir string
	// Subnet makes the loopback addresses 127.<Subnet>.0.x of the programs.
	Subnet byte
	// Transport is what goes between the parties.
	Transport fleet.Transport
	// Once ends the run after the tour.
	Once bool
	// Out is where people read.
	Out io.Writer
	// Command is how the person runs the demo with more flags: "%s" in it stands for them.
	Command string

	began time.Time
}

// Clusters are the managed clusters of the demo.
var Clusters = []string{"cluster1", "cluster2"}

// Run takes the tour and then, unless Once, waits until ctx ends. It returns an
// error as soon as a step fails; whatever happens, nothing is left running.
func (d *Demo) Run(ctx context.Context) (err error) {
	d.began = time.Now()
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.check(); err != nil {
		return err
	}
	programs, err := d.build(ctx)
	if err != nil {
		return err
	}
	if err := emptyState(d.Dir); err != nil {
		return err
	}
	f := fleet.New(fleet.Config{
		Root: d.Root, Dir: d.Dir, Bin: filepath.Join(d.Root, "bin"), ControlPlane: programs,
		Clusters: Clusters, Subnet: d.Subnet, Transport: d.Transport, Printf: d.printf,
	})
	if err := f.Start(ctx); err != nil {
		return err
	}
	defer func() {
		d.printf("stopping everything")
		err = errors.Join(err, f.Stop())
	}()
	if err := d.tour(ctx, f); err != nil {
		return err
	}
	if d.Once {
		d.printf("the tour is done, every step worked")
		return nil
	}
	d.instructions(f)
	<-ctx.Done()
	return nil
}

// printf prints a line with the seconds since the start.
func (d *Demo) printf(format string, args ...any) {
	fmt.Fprintf(d.Out, "%4.0fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// build builds control plane and programs and returns the directory of the
// former.
func (d *Demo) build(ctx context.Context) (string, error) {
	d.printf("building the test control plane and kubectl (minutes the first time, then cached)")
	programs, err := controlplane.Build(ctx, d.Root, d.Out)
	if err != nil {
		return "", err
	}
	d.printf("building Hawser")
	build := exec.CommandContext(ctx, "make", "-s", "-C", d.Root, "build")
	build.Stderr = d.Out // it says how far it is
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("make build: %w", err)
	}
	return programs, nil
}

// emptyState removes what an earlier demo left, except the lock that is held.
func emptyState(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == lockFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
