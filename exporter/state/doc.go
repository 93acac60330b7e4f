// Package state persists in a folder what the exporter needs to continue after a restart.
//
// The state consists of [Part]s, which encode themselves. It is a log. At each tick, each part
// appends its changes, and from time to time its whole state, which makes earlier entries
// unnecessary. A log suits a state that mostly changes each second: a store that rewrites pages
// would write the pages of all sums each second, many times the sums themselves, and wait for the
// disk. A library for logs would add an index, transactions and files of its own, without keeping
// the rules below.
//
// The folder has segments, state-NUMBER.log. A segment begins with a header (format, node, boot ID)
// and the whole state. Changes follow, one frame per tick: length, CRC-32C and content. When a
// segment has many changes, a new one begins. Once the new one has reached the disk, the earlier
// one is removed. The folder is locked (flock): a second process with the same folder does not
// write.
//
// # What a restart may continue
//
// A counter must never continue below a value that was served. Therefore, the changes of a tick are
// handed to the operating system before its snapshot is served. A mark follows, which records that
// they were handed over in time. A tick waits for the disk for at most [maxWait]. If something was
// served without being written, the mark at the end is missing:
//
//   - A disk is slow or hangs: the tick continues, and the late frame gets no mark.
//   - A disk is full, or can't be written any more: the last mark is cut off, which takes no
//     space. If that fails too, the segment is removed.
//   - The machine crashes: marks are not valid across boots. A state from another boot is
//     continued only if the process ended normally, which it records once everything has reached
//     the disk.
//
// A state without the mark is restored, but [Restored.Continues] is false. That is also so if the
// process was killed in the microseconds between a frame and its mark. A write that hangs, is
// interrupted and leaves no trace is not noticed. That can happen on network file systems and FUSE:
// the folder must be on a disk of the node.
//
// A killed process loses what it has not served. A loss of power may lose what was written in the
// last [syncEvery].
//
// Bounds (max…) are for what the kernel sends: files of a damaged disk.
package state
