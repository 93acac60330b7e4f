// Package state keeps in a folder what the exporter needs to go on after a restart.
//
// The state is that of its [Part]s, which encode it themselves. It is a log: at each tick each part
// appends what has changed, and now and then its whole state, which makes what was written before
// unnecessary. A log suits a state of which most changes each second: a store that rewrites pages
// would write the pages of all sums each second, many times the sums themselves, and wait for the
// disk. The records are few kinds of one program's bytes; a library for logs would add an index,
// transactions and files of its own, and none of them would hold the rules below.
//
// The folder has segments, state-NUMBER.log. A segment begins with a header (format, node, boot ID)
// and the whole state; changes follow, one frame a tick: length, CRC-32C and content. When a
// segment has many changes, another one begins; once it has reached the disk, the one before is
// removed. The lock is that of the folder (flock): a second process on it does not write.
//
// # What a restart may continue
//
// A counter must never continue below a value that was served. So the changes of a tick are handed
// to the operating system before its snapshot is served, and are followed by a mark that they were
// handed in time. A tick does not wait for a disk for longer than [maxWait]. What was served
// without having been written is noticed by the missing mark at the end:
//
//   - a disk that is slow or hangs: the tick goes on, and the frame that is late gets no mark;
//   - a full disk, or one that can't be written any more: the last mark is cut off, which takes no
//     space. If that fails too, the segment is removed;
//   - a crash of the machine: marks say nothing across boots. A store of another boot is continued
//     if the process ended by itself, which it notes when all has reached the disk.
//
// A store without the mark is read all the same, but [Restored.Continues] is false. It is also
// false if the process was killed in the microseconds between a frame and its mark. Not noticed is
// a write that hangs, is interrupted and leaves no trace, as network file systems and FUSE may have
// them: the folder is meant to be on a disk of the node.
//
// A process that is killed loses what it has not served. When the machine loses power, what was
// written in the last [syncEvery] may be lost.
package state
