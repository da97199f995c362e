package penstock.bench;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Putting. The caller's message objects, with keys and tags, are made before the clock starts; turning them into bytes
 * is timed, as it is for Penstock: for a single message its properties, for a batch the client's form.
 * With "bare" even that was done before, and only the store's own call is measured.
 */
class Puts {
    interface Job {
        void run(int thread) throws Exception;
    }

    static void singles(Target target, JSONObject command, JSONObject done) throws Exception {
        int count = command.getIntValue("count");
        int threads = Math.max(1, command.getIntValue("threads"));
        boolean bare = command.getBooleanValue("bare");
        boolean each = command.getBooleanValue("each");
        MessageExtBrokerInner[] messages = new MessageExtBrokerInner[count];
        for (int i = 0; i < count; i++) {
            messages[i] = target.single(i % Target.QUEUES, command.getIntValue("size"));
            if (bare) {
                messages[i].setPropertiesString(MessageDecoder.messageProperties2String(messages[i].getProperties()));
            }
        }
        long[] times = new long[each ? count : 0];
        int share = count / threads;
        long[] took = timed(target, threads, thread -> {
            for (int i = thread * share; i < (thread + 1) * share; i++) {
                long began = each ? System.nanoTime() : 0;
                if (!bare) {
                    String properties = MessageDecoder.messageProperties2String(messages[i].getProperties());
                    messages[i].setPropertiesString(properties);
                }
                check(target.store.putMessage(messages[i]));
                if (each) {
                    times[i] = System.nanoTime() - began;
                }
            }
        });
        done.put("acked_ns", took[0]);
        done.put("ns", took[1]);
        done.put("count", share * threads);
        if (each) {
            done.put("latency", latency(times));
        }
    }

    static void batches(Target target, JSONObject command, JSONObject done) throws Exception {
        int size = command.getIntValue("size");
        int batch = command.getIntValue("batch");
        int count = command.getIntValue("count") / batch;
        boolean bare = command.getBooleanValue("bare");
        List<List<Message>> lists = new ArrayList<>();
        byte[][] encoded = new byte[count][];
        for (int i = 0; i < count; i++) {
            lists.add(several(target, batch, size));
            encoded[i] = bare ? MessageDecoder.encodeMessages(lists.get(i)) : null;
        }
        long[] took = timed(target, 1, thread -> {
            for (int i = 0; i < count; i++) {
                byte[] body = bare ? encoded[i] : MessageDecoder.encodeMessages(lists.get(i));
                check(put(target, body, i % Target.QUEUES));
            }
        });
        done.put("acked_ns", took[0]);
        done.put("ns", took[1]);
        done.put("count", count * batch);
    }

    private static List<Message> several(Target target, int batch, int size) {
        List<Message> several = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            several.add(target.part(size));
        }
        return several;
    }

    private static PutMessageResult put(Target target, byte[] body, int queue) {
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(Target.TOPIC);
        batch.setBody(body);
        Target.place(batch, queue);
        return target.store.putMessages(batch);
    }

    /** Puts much, for what is measured later. */
    static void fill(Target target, JSONObject command, JSONObject done) throws Exception {
        int size = command.getIntValue("size");
        int batch = Math.max(1, Math.min(1000, (1 << 20) / size));
        long left = command.getLongValue("count");
        for (int turn = 0; left > 0; turn++, left -= batch) {
            List<Message> several = several(target, (int) Math.min(batch, left), size);
            check(put(target, MessageDecoder.encodeMessages(several), turn % Target.QUEUES));
        }
        target.settle();
        done.put("count", target.number);
    }

    /** Puts one message into each of many queues. */
    static void queues(Target target, JSONObject command, JSONObject done) throws Exception {
        for (int queue = 0; queue < command.getIntValue("count"); queue++) {
            MessageExtBrokerInner message = target.single(queue, command.getIntValue("size"));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            check(target.store.putMessage(message));
        }
        target.settle();
        done.put("count", command.getIntValue("count"));
    }

    /** From a put to the queue having it. */
    static void lag(Target target, JSONObject command, JSONObject done) throws Exception {
        long[] times = new long[command.getIntValue("count")];
        for (int i = 0; i < times.length; i++) {
            MessageExtBrokerInner message = target.single(0, command.getIntValue("size"));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            Thread.sleep(1);
            long began = System.nanoTime();
            PutMessageResult put = target.store.putMessage(message);
            check(put);
            long wanted = put.getAppendMessageResult().getLogicsOffset();
            while (target.store.getMaxOffsetInQueue(Target.TOPIC, 0) <= wanted) {
                Thread.onSpinWait();
            }
            times[i] = System.nanoTime() - began;
        }
        done.put("latency", latency(times));
    }

    private static void check(PutMessageResult put) {
        if (!put.isOk()) {
            throw new IllegalStateException(String.valueOf(put.getPutMessageStatus()));
        }
    }

    private static long[] timed(Target target, int threads, Job job) throws Exception {
        System.gc(); // what was made before the clock starts must not be copied while it runs
        if (threads == 1) {
            long began = System.nanoTime();
            job.run(0);
            return acknowledged(target, began);
        }
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        AtomicLong failed = new AtomicLong();
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    ready.countDown();
                    go.await();
                    job.run(number);
                } catch (Exception error) {
                    error.printStackTrace();
                    failed.incrementAndGet();
                }
            });
            thread.start();
            running.add(thread);
        }
        ready.await();
        long began = System.nanoTime();
        go.countDown();
        for (Thread thread : running) {
            thread.join();
        }
        long[] took = acknowledged(target, began);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " threads failed");
        }
        return took;
    }

    /** Nanoseconds up to now, and until the queues have it all. */
    private static long[] acknowledged(Target target, long began) {
        long acknowledged = System.nanoTime() - began;
        target.settle();
        return new long[] {acknowledged, System.nanoTime() - began};
    }

    static JSONObject latency(long[] times) {
        Arrays.sort(times);
        JSONObject found = new JSONObject();
        for (String part : new String[] {"50", "90", "99", "99.9", "99.99"}) {
            int at = (int) Math.ceil(Double.parseDouble(part) / 100 * times.length) - 1;
            found.put(part, times[Math.max(0, Math.min(times.length - 1, at))]);
        }
        found.put("100", times[times.length - 1]);
        return found;
    }
}
