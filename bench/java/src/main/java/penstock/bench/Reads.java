package penstock.bench;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.Random;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;

/** Reading: pull (and decode), find by key, offset by time. */
class Reads {
    static void read(Target target, JSONObject command, JSONObject done) throws Exception {
        boolean decode = command.getBooleanValue("decode");
        int limit = command.getIntValue("limit");
        long most = command.getLongValue("count");
        long seen = 0;
        long bytes = 0;
        long began = System.nanoTime();
        for (int queue = 0; queue < Target.QUEUES && seen < most; queue++) {
            long end = target.store.getMaxOffsetInQueue(Target.TOPIC, queue);
            for (long at = 0; at < end && seen < most; ) {
                GetMessageResult got = target.store.getMessage("bench", Target.TOPIC, queue, at, limit, null);
                for (ByteBuffer buffer : got.getMessageBufferList()) {
                    if (decode) {
                        MessageExt message = MessageDecoder.decode(buffer, true, false);
                        bytes += message.getBody().length + message.getTags().length() + message.getKeys().length();
                    }
                    seen++;
                }
                long next = got.getNextBeginOffset();
                got.release();
                if (next <= at) {
                    throw new IllegalStateException("no way on from " + at + ": " + got.getStatus());
                }
                at = next;
            }
        }
        done.put("ns", System.nanoTime() - began);
        done.put("count", seen);
        done.put("bytes", bytes);
    }

    static void find(Target target, JSONObject command, JSONObject done) throws Exception {
        Random chance = new Random(command.getLongValue("seed"));
        int count = command.getIntValue("count");
        String[] keys = new String[count];
        for (int i = 0; i < count; i++) {
            keys[i] = Target.key((long) (chance.nextDouble() * target.number));
        }
        long end = System.currentTimeMillis() + 3_600_000;
        long began = System.nanoTime();
        for (String key : keys) {
            QueryMessageResult found = target.store.queryMessage(Target.TOPIC, key, 32, 0, end);
            int right = 0;
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                right += key.equals(MessageDecoder.decode(buffer, true, false).getKeys()) ? 1 : 0;
            }
            found.release();
            if (right != 1) {
                throw new IllegalStateException(right + " messages with key " + key);
            }
        }
        done.put("ns", System.nanoTime() - began);
        done.put("count", count);
    }

    static void offsetAt(Target target, JSONObject command, JSONObject done) throws Exception {
        Random chance = new Random(command.getLongValue("seed"));
        int count = command.getIntValue("count");
        long end = target.store.getMaxOffsetInQueue(Target.TOPIC, 0);
        long low = target.store.getMessageStoreTimeStamp(Target.TOPIC, 0, 0);
        long high = target.store.getMessageStoreTimeStamp(Target.TOPIC, 0, end - 1);
        long[] times = new long[count];
        for (int i = 0; i < count; i++) {
            times[i] = low + (long) (chance.nextDouble() * (high - low + 1));
        }
        long sum = 0;
        long began = System.nanoTime();
        for (long time : times) {
            sum += target.store.getOffsetInQueueByTime(Target.TOPIC, 0, time);
        }
        done.put("ns", System.nanoTime() - began);
        done.put("count", count);
        done.put("sum", sum);
    }
}
