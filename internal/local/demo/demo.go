// Package demo is `hawser demo`. It builds all programs from the checkout and runs a hub, two managed clusters
// and Hawser between them. It applies a first work, shows its progress, and keeps everything running.
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
	// Root is the repository, Dir the state directory of the demo; Dir is emptied at the start.
	Root, Dir string
	// Subnet selects the loopback addresses 127.<Subnet>.0.x of the programs.
	Subnet byte
	// Transport is the transport between the programs.
	Transport fleet.Transport
	// Brokers is the number of brokers. Several share a PostgreSQL server, and each is killed once during the tour.
	Brokers int
	// Once ends the run after the tour.
	Once bool
	// Out receives the text for the user.
	Out io.Writer
	// Command is the command line of the demo; "%s" in it is replaced by more flags.
	Command string

	began time.Time
}

// Clusters are the managed clusters of the demo.
var Clusters = []string{"cluster1", "cluster2"}

// Run runs the tour and then, unless Once, waits until ctx ends. It returns an error as soon as a step fails,
// and always stops all processes.
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
	c := d.config()
	c.ControlPlane = programs
	f := fleet.New(c)
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

// config returns the configuration of the fleet, without its control plane.
func (d *Demo) config() fleet.Config {
	return fleet.Config{
		Root: d.Root, Dir: d.Dir, Bin: filepath.Join(d.Root, "bin"),
		Clusters: Clusters, Subnet: d.Subnet, Transport: d.Transport, Brokers: d.Brokers, Printf: d.printf,
	}
}

// printf prints a line with the seconds since the start.
func (d *Demo) printf(format string, args ...any) {
	fmt.Fprintf(d.Out, "%4.0fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// build builds control plane and programs, and returns the directory of the control plane.
func (d *Demo) build(ctx context.Context) (string, error) {
	d.printf("building the test control plane and kubectl (minutes the first time, then cached)")
	programs, err := controlplane.Build(ctx, d.Root, d.Out)
	if err != nil {
		return "", err
	}
	d.printf("building Hawser")
	build := exec.CommandContext(ctx, "make", "-s", "-C", d.Root, "build")
	build.Stderr = d.Out // it prints its progress
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("make build: %w", err)
	}
	return programs, nil
}

// emptyState removes the files of an earlier demo, except the held lock.
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
